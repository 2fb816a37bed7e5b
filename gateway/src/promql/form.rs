//! The form of a POST.

use std::time::Duration;

use http::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use proto::Reason;
use tokio::time::timeout;
use tunnel::Body;

use super::{FORM, bad_request, not_enforceable};
use crate::failure::Failure;

/// How long it may take to come.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Reads it whole, if it has at most `limit` bytes.
pub(super) async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Result<Vec<u8>, Failure> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let form = types.next().is_some_and(|first| first.as_bytes().eq_ignore_ascii_case(FORM.as_bytes()));
    if !form || types.next().is_some() || headers.contains_key(CONTENT_ENCODING) {
        return Err(not_enforceable(
            "this caller sees only series with certain labels, which can be enforced in a POST only if it is a plain \
             application/x-www-form-urlencoded",
        ));
    }

    let reading = timeout(TIMEOUT, Limited::new(body, limit).collect()).await;
    let read = reading.map_err(|_| bad_request("the form did not arrive within 30 seconds"))?;
    read.map(|whole| whole.to_bytes().to_vec()).map_err(|error| {
        if error.is::<LengthLimitError>() {
            let what =
                format!("the form has more than {limit} bytes (agent.kubernetes_api.limits.max_form_bytes)");
            return Failure::new(Reason::BodyTooLarge, what);
        }
        bad_request(format!("the form ended early: {error}"))
    })
}
