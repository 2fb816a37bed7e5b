//! Projects that no pod works on, whose last states must not pass for current ones.

use std::time::{Duration, SystemTime};

use proto::gitops::{ProjectState, ProjectStatus};

/// The age from which a state is not a current one. A leader notes every 5 minutes that it has looked.
const MAX_AGE: Duration = Duration::from_secs(15 * 60);

/// Marks the project if no pod works on it. `leaderless`: why no pod of agentk leads, if that is so.
pub(super) fn mark(status: &mut ProjectStatus, leaderless: Option<&str>, now: SystemTime) {
    let message = match leaderless {
        Some(error) => format!("no pod of agentk leads GitOps: {error}"),
        None if is_overdue(status, now) => {
            "no pod of agentk has compared the project with Git for more than 15 minutes: see the log of agentk".to_owned()
        }
        None => return,
    };
    status.message = format!("{message} (the state before was {})", status.state.as_str());
    status.state = ProjectState::Unattended;
}

/// Returns whether a leader would have looked again by now.
fn is_overdue(status: &ProjectStatus, now: SystemTime) -> bool {
    use ProjectState::{Contested, Degraded, Empty, OutOfSync, Synced};

    let is_looked_after = matches!(status.state, Synced | Empty | OutOfSync | Contested | Degraded);
    let looked = SystemTime::UNIX_EPOCH + Duration::from_millis(status.as_of);
    is_looked_after && status.as_of > 0 && now.duration_since(looked).is_ok_and(|age| age > MAX_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60 * 1000;

    /// Returns how a project looks an hour after 1970, if it was seen at another minute.
    fn seen_at(minute: u64, state: ProjectState, leaderless: Option<&str>) -> ProjectStatus {
        let mut status = ProjectStatus {
            state,
            as_of: minute * MINUTE,
            message: "last".to_owned(),
            ..ProjectStatus::default()
        };
        mark(&mut status, leaderless, SystemTime::UNIX_EPOCH + Duration::from_millis(60 * MINUTE));
        status
    }

    #[test]
    fn state_without_a_leader_is_not_shown_as_a_current_one() {
        let status = seen_at(60, ProjectState::Synced, Some("forbidden (403)"));
        assert_eq!(status.state, ProjectState::Unattended);
        assert_eq!(
            status.message,
            "no pod of agentk leads GitOps: forbidden (403) (the state before was synced)"
        );
    }

    #[test]
    fn state_that_a_leader_does_not_refresh_is_not_shown_as_a_current_one() {
        use ProjectState::{Degraded, Held, Orphaned, Suspended, Synced, Unattended};

        let states = [(45, Synced), (44, Synced), (44, Degraded), (70, Synced), (0, Synced)];
        let shown = states.map(|(minute, state)| seen_at(minute, state, None).state);
        assert_eq!(
            shown,
            [Synced, Unattended, Unattended, Synced, Synced],
            "a clock may be ahead; 0 is unknown"
        );
        // A leader does not look again at projects in these states.
        for state in [Suspended, Orphaned, Held] {
            assert_eq!(seen_at(1, state, None).message, "last");
        }
    }
}
