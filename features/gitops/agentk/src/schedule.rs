//! The times at which the worker of a project looks at the cluster again, and the decision whether it may write then.

use std::time::Duration;

use gitops_engine::Outcome;
use proto::{
    agent_configuration::gitops::SelfHeal,
    gitops::{AwaitedObject, ObjectCounts, ProjectState},
};
use tokio::time::Instant;

/// The time between two looks for drift.
pub(super) const CHECK_PERIOD: Duration = Duration::from_secs(30);
/// The time between two looks at objects that are not healthy yet.
const HEALTH_PERIOD: Duration = Duration::from_secs(3);
/// The shortest and the longest time between two looks at objects that a sync waits for.
const WAITING_PERIOD: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// The waits after a sync that failed.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));
/// The shortest time between two syncs that revert changes. An object that others change again and again waits longer.
const REVERT: Duration = Duration::from_millis(500);

/// The times at which a worker looks at the cluster again.
pub(super) struct Schedule {
    /// The next sync.
    pub(super) next: Instant,
    /// The next look at the health of the objects.
    health: Instant,
    /// The next look at the objects that a sync waits for, if it does, and the wait after it.
    waiting: Option<(Instant, Duration)>,
    /// The wait after the next failure.
    backoff: Duration,
    /// The earliest time to revert a change by others.
    revert: Instant,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Self { next: now, health: now + CHECK_PERIOD, waiting: None, backoff: BACKOFF.0, revert: now }
    }

    /// Somebody else has changed an object, which may be changed back at a time.
    pub(super) fn note_drift(&mut self, at: Instant) {
        self.next = self.next.min(self.revert.max(at));
    }

    /// A sync failed, or cannot be tried now.
    pub(super) fn note_failure(&mut self, now: Instant) {
        self.next = now + self.backoff;
        self.revert = self.next;
        self.backoff = (self.backoff * 2).min(BACKOFF.1);
    }

    /// A sync succeeded.
    pub(super) fn note_success(&mut self, now: Instant, reverted: bool) {
        self.revert = if reverted { now + REVERT } else { now };
        self.next = now + CHECK_PERIOD;
        self.backoff = BACKOFF.0;
    }

    /// The syncs are suspended.
    pub(super) fn note_suspension(&mut self, now: Instant) {
        self.next = now + CHECK_PERIOD;
    }

    /// The worker has looked at the health of the objects. Some may be starting.
    pub(super) fn note_health(&mut self, now: Instant, starting: bool) {
        self.health = now + if starting { HEALTH_PERIOD } else { CHECK_PERIOD };
    }

    /// A sync has ended. It may wait for objects, which may be others than before.
    pub(super) fn note_waiting(&mut self, now: Instant, waits: bool) {
        self.waiting = match self.waiting.filter(|_| waits) {
            None if waits => Some((now + WAITING_PERIOD.0, WAITING_PERIOD.0)),
            before => before,
        };
    }

    /// Returns whether the objects that a sync waits for are looked at now.
    pub(super) fn looks_at_awaited(&self, now: Instant) -> bool {
        self.waiting.is_some_and(|(at, _)| at <= now)
    }

    /// The objects that a sync waits for were looked at. If all are ready, the sync goes on.
    pub(super) fn note_awaited(&mut self, now: Instant, ready: bool) {
        if ready {
            self.next = now;
        }
        let (shortest, longest) = WAITING_PERIOD;
        let wait = self.waiting.map_or(shortest, |(_, wait)| (wait * 2).min(longest));
        self.waiting = Some((now + wait, wait));
    }

    /// Returns the time of the next sync or look.
    pub(super) fn wake(&self) -> Instant {
        let wake = self.health.min(self.next);
        self.waiting.map_or(wake, |(at, _)| at.min(wake))
    }

    /// Returns whether the health of the objects is looked at now.
    pub(super) fn looks_at_health(&self, now: Instant) -> bool {
        self.health <= now
    }
}

/// The action of a worker when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// It makes the cluster what is in Git.
    Write,
    /// It reports what others have changed.
    Report,
    /// It waits for a commit or a command.
    Wait,
}

/// The progress of a worker with a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// The number of the commit that was tried last, or 0.
    tried: u64,
    /// The commit was not applied yet, or a command was not answered yet.
    unfinished: bool,
    /// The objects that the passes of the commit so far wait for.
    pub(super) waiting: Vec<AwaitedObject>,
    /// The objects that the passes of the commit so far have applied and deleted.
    pub(super) earlier: ObjectCounts,
}

impl Progress {
    /// Returns whether a commit was not tried by this process.
    pub(super) fn is_new(&self, number: u64) -> bool {
        self.tried != number
    }

    /// Begins with a commit. A process before this one may have applied it: a restart or a lost tunnel is no reason to write. If it has
    /// waited for objects of the same commit, they are awaited since then.
    pub(super) fn begin(&mut self, number: u64, is_applied: bool, waiting: Vec<AwaitedObject>) {
        *self = Self { tried: number, unfinished: !is_applied, waiting, ..Self::default() };
    }

    /// Somebody has given a command, or the project was suspended: the next sync writes.
    pub(super) fn note_command(&mut self) {
        self.unfinished = true;
    }

    /// Notes how a sync ended. One that only looked leaves nothing unfinished, however it ended.
    pub(super) fn note_outcome(&mut self, outcome: &Outcome) {
        use ProjectState::{Failed, InventoryLost, Syncing};

        let ended = outcome.stopped.is_none() && ![Failed, InventoryLost, Syncing].contains(&outcome.state);
        self.unfinished &= !ended;
        if outcome.stopped.is_some() {
            return;
        }
        self.earlier = if outcome.waiting.is_empty() {
            ObjectCounts::default()
        } else {
            ObjectCounts {
                applied: outcome.objects.applied,
                pruned: outcome.objects.pruned,
                ..ObjectCounts::default()
            }
        };
        self.waiting.clone_from(&outcome.waiting);
    }

    /// Returns what to do. `held` says that deletions wait for an approval: they are not planned again before a command or a commit.
    pub(super) fn action(&self, self_heal: SelfHeal, held: bool) -> Action {
        match self_heal {
            SelfHeal::Heal => Action::Write,
            SelfHeal::Report | SelfHeal::Ignore if self.unfinished => Action::Write,
            SelfHeal::Report if !held => Action::Report,
            SelfHeal::Report | SelfHeal::Ignore => Action::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube_cluster::Stopped;

    use super::*;

    fn outcome(state: ProjectState, stopped: Option<Stopped>) -> Outcome {
        Outcome { state, stopped, ..Outcome::default() }
    }

    #[test]
    fn change_by_others_is_reverted_at_once() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut schedule = Schedule::new(start);
        schedule.note_success(start, false);
        assert_eq!(schedule.next, start + CHECK_PERIOD);
        schedule.note_drift(at(5000));
        assert_eq!(schedule.next, at(5000), "at once");
        schedule.note_success(at(5000), true);
        schedule.note_drift(at(5001));
        assert_eq!(schedule.next, at(5500), "half a second later");
        schedule.note_success(at(5500), true);
        schedule.note_drift(at(15_500));
        assert_eq!(schedule.next, at(15_500), "a contested object has a time");
        schedule.note_drift(at(90_000));
        assert_eq!(schedule.next, at(15_500), "the periodic look is earlier");
    }

    #[test]
    fn change_by_others_does_not_hasten_a_sync_that_fails() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        schedule.note_failure(start);
        schedule.note_drift(start + Duration::from_secs(1));
        assert_eq!(schedule.next, start + BACKOFF.0);
    }

    #[test]
    fn objects_that_start_are_looked_at_without_a_sync() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        schedule.note_success(start, false);
        schedule.note_health(start, true);
        assert_eq!((schedule.wake(), schedule.next), (start + HEALTH_PERIOD, start + CHECK_PERIOD));
        schedule.note_health(start, false);
        assert_eq!(schedule.wake(), schedule.next);
    }

    #[test]
    fn awaited_objects_are_looked_at_without_a_sync() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut schedule = Schedule::new(start);
        schedule.note_success(start, false);
        schedule.note_waiting(start, true);
        assert_eq!(schedule.wake(), at(100));
        schedule.note_awaited(at(100), false);
        assert_eq!((schedule.wake(), schedule.next), (at(300), start + CHECK_PERIOD));
        for _ in 0..10 {
            schedule.note_awaited(at(300), false);
        }
        assert_eq!(schedule.wake(), at(3300));
        // Drift is healed meanwhile.
        schedule.note_drift(at(500));
        assert_eq!(schedule.next, at(500));
        schedule.note_success(at(500), false);
        schedule.note_waiting(at(500), true);
        assert_eq!(schedule.wake(), at(3300), "the same objects are awaited");
        schedule.note_awaited(at(3300), true);
        assert_eq!(schedule.next, at(3300));
        schedule.note_success(at(3300), false);
        schedule.note_waiting(at(3300), false);
        assert_eq!(schedule.wake(), at(3300) + CHECK_PERIOD.min(schedule.health - at(3300)));
    }

    #[test]
    fn passes_of_a_commit_add_up_until_it_is_complete() {
        let mut progress = Progress::default();
        progress.begin(1, false, Vec::new());
        let awaited = AwaitedObject { since: 7, ..AwaitedObject::default() };
        let objects = ObjectCounts { applied: 3, unchanged: 4, ..ObjectCounts::default() };
        let waits =
            Outcome { waiting: vec![awaited.clone()], objects, ..outcome(ProjectState::Syncing, None) };
        progress.note_outcome(&waits);
        assert_eq!((progress.earlier.applied, progress.earlier.unchanged), (3, 0));
        progress.note_outcome(&outcome(ProjectState::Syncing, Some(Stopped::LostLease)));
        assert_eq!(progress.waiting, [awaited], "it goes on");
        assert_eq!(progress.action(SelfHeal::Report, false), Action::Write);
        progress.note_outcome(&outcome(ProjectState::Synced, None));
        assert_eq!((progress.earlier, progress.waiting.len()), (ObjectCounts::default(), 0));
        assert_eq!(progress.action(SelfHeal::Report, false), Action::Report);
    }

    #[test]
    fn failure_is_tried_again_with_longer_and_longer_waits() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        let waits: Vec<u64> = (0..5)
            .map(|_| {
                schedule.note_failure(start);
                (schedule.next - start).as_secs()
            })
            .collect();
        assert_eq!(waits, [10, 20, 40, 60, 60]);
        schedule.note_success(start, false);
        schedule.note_failure(start);
        assert_eq!((schedule.next - start).as_secs(), 10);
    }

    #[test]
    fn commit_is_written_until_it_is_applied_and_then_only_reported() {
        let mut progress = Progress::default();
        progress.begin(1, false, Vec::new());
        progress.note_outcome(&outcome(ProjectState::Failed, None));
        assert_eq!(progress.action(SelfHeal::Report, false), Action::Write);
        progress.note_outcome(&outcome(ProjectState::Syncing, Some(Stopped::LostLease)));
        assert_eq!(progress.action(SelfHeal::Ignore, false), Action::Write);
        progress.note_outcome(&outcome(ProjectState::Synced, None));
        assert_eq!(progress.action(SelfHeal::Report, false), Action::Report);
        assert_eq!(progress.action(SelfHeal::Ignore, false), Action::Wait);
        assert_eq!(progress.action(SelfHeal::Heal, false), Action::Write);
    }

    #[test]
    fn restart_and_lost_connections_revert_nothing_that_is_only_reported() {
        let mut progress = Progress::default();
        progress.begin(1, true, Vec::new());
        assert_eq!(
            progress.action(SelfHeal::Report, false),
            Action::Report,
            "another process has applied it"
        );
        // The API server does not respond for a while.
        progress.note_outcome(&outcome(ProjectState::Failed, None));
        progress.note_outcome(&outcome(ProjectState::Syncing, Some(Stopped::LostLease)));
        assert_eq!(progress.action(SelfHeal::Report, false), Action::Report);
        assert!(!progress.is_new(1), "kas sends the same commit again");
    }

    #[test]
    fn deletions_that_wait_for_an_approval_revert_nothing() {
        let mut progress = Progress::default();
        progress.begin(1, false, Vec::new());
        progress.note_outcome(&outcome(ProjectState::Held, None));
        assert_eq!(progress.action(SelfHeal::Report, true), Action::Wait);
        assert_eq!(progress.action(SelfHeal::Heal, true), Action::Write);
        progress.note_command();
        assert_eq!(progress.action(SelfHeal::Report, true), Action::Write, "somebody has approved them");
    }
}
