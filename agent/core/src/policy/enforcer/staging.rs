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
    /// Held while the file is read and its text is staged, so that of two readers the later one has the newer version.
    reading: Mutex<()>,
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
        Self { reading: Mutex::default(), staged: Mutex::default(), needed: watch::Sender::new(needed) }
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
        let _reading = self.staging.reading.lock();
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
        } else if self.is_ready(&policy) {
            *staged = None;
            self.replace(text, policy);
        } else {
            tracing::info!("the new policy waits until the labels of namespaces are known");
            // Later edits do not keep the version before in force for longer.
            let deadline =
                staged.as_ref().map_or_else(|| Instant::now() + MAX_WAIT, |staged| staged.deadline);
            *staged = Some(StagedPolicy { text, policy, deadline });
        }
        self.update_needed(staged.as_ref());
    }

    /// Returns whether a version need not wait: its labels are known, or the version in force lacks the same ones.
    fn is_ready(&self, policy: &Policy) -> bool {
        let keys = policy.label_keys();
        keys.is_subset(&self.active.load().label_keys) || self.labels.read(|labels| labels.covers(&keys))
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
        let due = staged.take_if(|staged| staged.deadline <= now || self.is_ready(&staged.policy));
        if let Some(StagedPolicy { text, policy, .. }) = due {
            self.replace(text, policy);
            self.update_needed(None);
        }
        staged.as_ref().map(|staged| staged.deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use tokio::time::advance;

    use super::*;
    use crate::AgentMetrics;

    const BY_NAME: &str = "rules: [{name: shop, action: allow, services: [kubernetes], namespaces: [shop]}]";
    const TEAM: &str = "rules: [{name: team, action: allow, services: [kubernetes], namespaceSelector: {matchLabels: {team: shop}}}]";

    fn loaded(text: &str) -> (TempDir, PolicyEnforcer) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("policy.yaml");
        fs::write(&file, text).unwrap();
        let policy = PolicyEnforcer::load(file, Vec::new(), AgentMetrics::default()).unwrap();
        (directory, policy)
    }

    fn edit(policy: &PolicyEnforcer, text: &str) {
        fs::write(policy.file(), text).unwrap();
        policy.reload().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn later_edits_do_not_extend_the_wait() {
        let (_directory, policy) = loaded(BY_NAME);
        edit(&policy, TEAM);
        let deadline = Instant::now() + MAX_WAIT;
        advance(Duration::from_secs(9)).await;
        edit(&policy, &TEAM.replace("shop", "other"));
        assert_eq!(policy.activate_if_due(Instant::now()), Some(deadline));
        assert!(!policy.needs_labels(), "the version before is in force");
        assert_eq!(policy.activate_if_due(deadline), None);
        assert!(policy.needs_labels());
    }

    /// The wait would change nothing: the version in force lacks the same labels.
    #[tokio::test(start_paused = true)]
    async fn version_without_further_keys_does_not_wait() {
        let (_directory, policy) = loaded(TEAM);
        let deny = "rules: [{name: d, action: deny, services: [kubernetes], resources: [secrets]}, ";
        edit(&policy, &TEAM.replace("rules: [", deny));
        assert!(policy.label_problem().is_some());
        assert_eq!(policy.summary().1, 2, "the new version is in force");
    }
}
