//! The responses of a method that has several, until the connection ends.

use std::pin::Pin;

use futures_util::{Stream, StreamExt as _};
use tonic::Status;

use super::GitlabConnection;

/// The responses of a method that has several.
pub(super) type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Ends the responses of a method when the connection should end.
pub(super) fn until_leaving<T: Send + 'static>(
    connection: &GitlabConnection,
    responses: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Responses<T> {
    let (leaving, pool) = (connection.leaving(), connection.pool.clone());
    let left = async move {
        tokio::select! {
            _ = leaving => {}
            () = pool.closed() => {}
        }
    };
    Box::pin(responses.take_until(Box::pin(left)))
}
