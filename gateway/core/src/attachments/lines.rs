//! Lines of JSON that an agent sends. They are not trusted.

use std::{fmt::Display, pin::pin, time::Duration};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::agent_memory::{AgentMemory, MemoryGuard};

/// Reads lines from a body.
pub struct Lines<B> {
    body: B,
    buffer: BytesMut,
    /// The longest line, in bytes.
    max: usize,
    /// Counts the bytes of lines that have not arrived whole.
    memory: Option<MemoryGuard>,
    /// The longest time without a line.
    timeout: Option<Duration>,
}

impl<B> Lines<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    /// Reads lines of at most `max` bytes.
    pub fn new(body: B, max: usize) -> Self {
        Self { body, buffer: BytesMut::new(), max, memory: None, timeout: None }
    }

    /// Counts lines that have not arrived whole in the memory of the agent that sends them.
    pub(crate) fn counted(self, memory: &AgentMemory) -> Self {
        Self { memory: Some(memory.guard()), ..self }
    }

    /// Limits the time without a line.
    pub(crate) fn with_timeout(self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the next line, or `None` at the end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The line is too late, too long or not of this type, kas keeps too much for the agent, or the body has ended early.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        match self.timeout {
            Some(limit) => timeout(limit, self.read()).await.map_err(|_| "agentk sends nothing")?,
            None => self.read().await,
        }
    }

    async fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        // The bytes before have no end of a line.
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(searched + end + 1);
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|error| format!("agentk sent an invalid line: {error}"));
            }
            searched = self.buffer.len();
            if let Some(memory) = &mut self.memory {
                memory.set(searched).map_err(|error| error.to_string())?;
            }
            if self.buffer.len() > self.max {
                return Err(format!("agentk sent a line of over {} bytes", self.max));
            }
            let frame = pin!(&mut self.body).frame().await;
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(error)) => return Err(error.to_string()),
            }
        }
    }
}
