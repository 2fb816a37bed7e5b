//! The configuration of all agents, as a test sets it.

use std::sync::Arc;

use access::{AgentIdentity, ConfigurationFile, ConfigurationSource, FileKey, ReadError, Reading};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

/// The configuration of every agent, as a test sets it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configuration(Arc<Mutex<(u64, String)>>);

impl Configuration {
    pub(crate) fn set(&self, text: &str) {
        let mut state = self.0.lock();
        *state = (state.0 + 1, text.to_owned());
    }
}

impl ConfigurationSource for Configuration {
    fn read<'a>(
        &'a self,
        _: &'a AgentIdentity,
        _: Option<&'a FileKey>,
    ) -> BoxFuture<'a, Result<Option<Reading>, ReadError>> {
        let (version, content) = self.0.lock().clone();
        let file = ConfigurationFile {
            key: FileKey(version.to_string()),
            version: version.to_string(),
            path: "config.yaml".into(),
            content: Some(content.into_bytes()),
            project: Some("group/agents".to_owned()),
            template: None,
        };
        Box::pin(async { Ok(Some(Reading::File(file))) })
    }
}
