//! Brings new versions of the policy file into force. A version that depends on labels of namespaces that are not known yet waits for them: until
//! then, it would refuse what it allows.

use std::{sync::Arc, time::Duration};

use agentk_policy::{LabelKeys, Policy};
use files::{WatchedFile, follow};
use parking_lot::Mutex;
use settings::ConfigError;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::PolicyEnforcer;

/// The longest time that a version waits for labels. Then it comes into force, and its rules by labels allow nothing until they are known.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The version that waits, and the labels that are needed.
#[derive(Debug)]
pub(super) struct Staging {
    staged: Mutex<Option<StagedPolicy>>,
    /// The keys of the labels on which the versions in force and in `staged` depend.
    needed: watch::Sender<LabelKeys>,
}

#[derive(Debug)]
struct StagedPolicy {
    text: String,
    policy: Policy,
    deadline: Instant,
}

impl Staging {
    pub(super) fn new(needed: LabelKeys) -> Self {
        Self { staged: Mutex::default(), needed: watch::Sender::new(needed) }
    }
}

impl PolicyEnforcer {
    /// Reloads the file when it changes and on each of `requests`. The future never completes. While the file cannot be used,
    /// the last good version stays in force.
    pub fn follow(
        self: Arc<Self>,
        file: WatchedFile,
        requests: watch::Receiver<()>,
    ) -> impl Future<Output = ()> + Send {
        let (paths, policy) = (vec![self.file.clone()], Arc::clone(&self));
        let reloading = follow(file, paths, requests, move || policy.reload());
        async move {
            tokio::join!(reloading, self.activate_staged());
        }
    }

    /// Reads the file again. The new version comes into force at once, or within 10 s if it needs further labels.
    ///
    /// # Errors
    ///
    /// The file cannot be used. The version before stays in force.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let parsed = Policy::read(&self.file).and_then(|text| {
            let policy = Policy::parse(&self.file, &text)?;
            Ok((text, policy))
        });
        self.metrics.record_policy_reload(parsed.is_ok());
        let (text, policy) = parsed?;
        self.stage(text, policy);
        Ok(())
    }

    /// Returns the keys of the labels that the policy needs.
    pub(crate) fn needed_labels(&self) -> watch::Receiver<LabelKeys> {
        self.staging.needed.subscribe()
    }

    fn stage(&self, text: String, policy: Policy) {
        let mut staged = self.staging.staged.lock();
        if staged.as_ref().is_some_and(|staged| staged.text == text) {
            return;
        }
        if self.active.load().text == text {
            *staged = None;
        } else if self.has_labels_for(&policy) {
            *staged = None;
            self.replace(text, policy);
        } else {
            tracing::info!("the new policy waits until the labels of namespaces are known");
            *staged = Some(StagedPolicy { text, policy, deadline: Instant::now() + MAX_WAIT });
        }
        self.update_needed(staged.as_ref());
    }

    fn has_labels_for(&self, policy: &Policy) -> bool {
        let keys = policy.label_keys();
        keys.is_empty() || self.labels.read(|labels| labels.covers(&keys))
    }

    fn update_needed(&self, staged: Option<&StagedPolicy>) {
        let of_staged = staged.map(|staged| staged.policy.label_keys()).unwrap_or_default();
        self.staging.needed.send_replace(&self.active.load().label_keys | &of_staged);
    }

    /// Brings the version that waits into force once its labels are known, or at its deadline. Never completes.
    async fn activate_staged(&self) {
        let (mut announcements, mut needed) = (self.labels.announcements(), self.needed_labels());
        loop {
            let deadline = self.activate_if_due(Instant::now());
            tokio::select! {
                // The senders live as long as the enforcer.
                _ = announcements.changed() => {}
                _ = needed.changed() => {}
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
            }
        }
    }

    /// Brings the version that waits into force if it is time. Otherwise its deadline is returned.
    fn activate_if_due(&self, now: Instant) -> Option<Instant> {
        let mut staged = self.staging.staged.lock();
        let due = staged.take_if(|staged| staged.deadline <= now || self.has_labels_for(&staged.policy));
        if let Some(StagedPolicy { text, policy, .. }) = due {
            self.replace(text, policy);
            self.update_needed(None);
        }
        staged.as_ref().map(|staged| staged.deadline)
    }
}
