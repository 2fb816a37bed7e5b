//! Reads the form of a POST.

use std::{error::Error, time::Duration};

use http::{
    HeaderMap, HeaderValue,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body::Body;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use proto::Reason;
use tokio::time::timeout;

use crate::QueryError;

/// The content type of a form.
pub(super) const CONTENT_TYPE_FORM: HeaderValue =
    HeaderValue::from_static("application/x-www-form-urlencoded");

/// The time that a form may take to arrive.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a form of at most `limit` bytes.
pub(super) async fn read<B>(headers: &HeaderMap, body: B, limit: usize) -> Result<Vec<u8>, QueryError>
where
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let form =
        types.next().is_some_and(|first| first.as_bytes().eq_ignore_ascii_case(CONTENT_TYPE_FORM.as_bytes()));
    if !form || types.next().is_some() || headers.contains_key(CONTENT_ENCODING) {
        return Err(QueryError::not_enforceable(
            "this caller may see only series with certain labels, which can be enforced in a POST only if its body is \
             application/x-www-form-urlencoded",
        ));
    }

    let reading = timeout(TIMEOUT, Limited::new(body, limit).collect()).await;
    let late = |_| QueryError::new(Reason::BodyTimeout, "the form did not arrive within 30 seconds");
    let read = reading.map_err(late)?;
    read.map(|whole| whole.to_bytes().to_vec()).map_err(|error| {
        if error.is::<LengthLimitError>() {
            let what =
                format!("the form has more than {limit} bytes (agent.kubernetes_api.limits.max_form_bytes)");
            return QueryError::new(Reason::BodyTooLarge, what);
        }
        let message = format!("the form ended early: {error}");
        QueryError { body: Some(error), ..QueryError::bad_request(message) }
    })
}
