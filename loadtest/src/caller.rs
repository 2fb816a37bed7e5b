//! A caller with one persistent connection.

use std::sync::Arc;

use crate::load::{
    LoadError, Target,
    client::{self, Connection, ResponseHead},
};

/// Sends one request at a time.
pub(crate) struct Caller {
    target: Arc<Target>,
    connection: Option<Connection>,
}

impl Caller {
    /// Creates a caller that has no connection yet.
    pub(crate) fn new(target: Arc<Target>) -> Self {
        Self { target, connection: None }
    }

    /// Sends a request and reads its whole response. Dropping the future closes the connection.
    pub(crate) async fn send(&mut self) -> Result<ResponseHead, LoadError> {
        let request = &self.target.requests()[0];
        let (head, connection) = client::send_over(self.connection.take(), &self.target, request).await?;
        self.connection = connection;
        Ok(head)
    }
}
