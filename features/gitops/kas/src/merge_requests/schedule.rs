//! The times of the looks at the merge requests of a project, and which of them need a new preview.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use gitops_wire::{MergeRequest, MergeRequestError};
use tokio::time::Instant;

use super::note::NoteSection;

/// The time between two looks without a push. A merge request that is opened after its push gets its preview after it.
const PERIOD: Duration = Duration::from_secs(120);
/// The times after a push at which kas looks. GitLab changes the merge requests some time after it has reported the push.
const AFTER_PUSH: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];
/// The shortest time between two previews of a merge request.
const INTERVAL: Duration = Duration::from_secs(30);
/// The first and the longest wait after a failure.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// The wait after a refusal: another attempt gives the same until somebody changes something.
const REFUSED: Duration = Duration::from_secs(600);

/// The time of the next look.
#[derive(Debug)]
pub(super) struct LookTimes {
    next: Instant,
    /// Further looks after a push.
    further: VecDeque<Instant>,
    failures: u32,
}

/// The merge requests that were previewed, by their numbers.
#[derive(Debug, Default)]
pub(super) struct PreviewProgress {
    attempts: HashMap<u64, Attempt>,
    /// The sections that are not written yet, with their commits: a diff is expensive for the cluster.
    sections: HashMap<u64, (String, NoteSection)>,
}

/// The last preview of a merge request.
#[derive(Debug)]
struct Attempt {
    commit: String,
    is_done: bool,
    failures: u32,
    ended: Instant,
    /// The earliest time of the next one for the same commit.
    next: Instant,
}

impl LookTimes {
    pub(super) fn new(now: Instant) -> Self {
        Self { next: now + AFTER_PUSH[0], further: VecDeque::new(), failures: 0 }
    }

    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Notes a push. Many of them make no more looks than one in each second, and none sooner than after a failure.
    pub(super) fn push(&mut self, now: Instant) {
        let [first, further @ ..] = AFTER_PUSH;
        if self.failures == 0 {
            self.next = self.next.min(now + first);
        }
        self.further = further.map(|after| now + after).into();
    }

    /// Notes the end of a look. A merge request may need a preview at `due`.
    pub(super) fn looked(&mut self, due: Option<Instant>, now: Instant) {
        self.failures = 0;
        self.further.retain(|at| *at > now);
        let regular = self.further.front().copied().unwrap_or(now + PERIOD);
        self.next = due.map_or(regular, |due| due.max(now).min(regular));
    }

    /// Notes a look that failed.
    pub(super) fn failed(&mut self, error: &MergeRequestError, now: Instant) {
        self.failures += 1;
        self.next = now + pause(error, self.failures);
    }
}

impl PreviewProgress {
    /// Returns whether a merge request needs a preview now.
    pub(super) fn is_due(&self, request: &MergeRequest, now: Instant) -> bool {
        let last = self.attempts.get(&request.number);
        last.is_none_or(|last| last.due_for(&request.commit).is_some_and(|due| due <= now))
    }

    /// Returns the time at which the first of the merge requests needs a preview.
    pub(super) fn due(&self, open: &[MergeRequest]) -> Option<Instant> {
        let due = |request: &MergeRequest| self.attempts.get(&request.number)?.due_for(&request.commit);
        open.iter().filter_map(due).min()
    }

    /// Returns the section of the head of a merge request, if a preview before this one could not write it.
    pub(super) fn section(&self, request: &MergeRequest) -> Option<NoteSection> {
        let (commit, section) = self.sections.get(&request.number)?;
        (*commit == request.commit).then(|| section.clone())
    }

    /// Keeps a section until it is written.
    pub(super) fn keep_section(&mut self, request: &MergeRequest, section: &NoteSection) {
        self.sections.insert(request.number, (request.commit.clone(), section.clone()));
    }

    /// Notes the result of a preview.
    pub(super) fn finish(
        &mut self,
        request: &MergeRequest,
        result: Result<(), &MergeRequestError>,
        now: Instant,
    ) {
        if result.is_ok() {
            self.sections.remove(&request.number);
        }
        let before = self.attempts.get(&request.number).filter(|last| last.commit == request.commit);
        let failures = before.map_or(0, |last| last.failures) + u32::from(result.is_err());
        let wait = result.map_or_else(|error| pause(error, failures), |()| INTERVAL);
        let attempt = Attempt {
            commit: request.commit.clone(),
            is_done: result.is_ok(),
            failures,
            ended: now,
            next: now + wait,
        };
        self.attempts.insert(request.number, attempt);
    }

    /// Forgets merge requests that are not in the list any more.
    pub(super) fn retain(&mut self, open: &[MergeRequest]) {
        let is_open = |number: &u64| open.iter().any(|request| request.number == *number);
        self.attempts.retain(|number, _| is_open(number));
        self.sections.retain(|number, _| is_open(number));
    }
}

impl Attempt {
    /// Returns the time at which a commit needs a preview. A refusal of another commit does not defer it.
    fn due_for(&self, commit: &str) -> Option<Instant> {
        if self.commit != commit {
            return Some(self.ended + INTERVAL);
        }
        (!self.is_done).then_some(self.next)
    }
}

/// Returns the wait after a failure, which is one of a series.
fn pause(error: &MergeRequestError, failures: u32) -> Duration {
    match error {
        MergeRequestError::Refused(_) => REFUSED,
        MergeRequestError::Unavailable { retry_after, .. } => {
            let doubled = BACKOFF.0.saturating_mul(1 << failures.saturating_sub(1).min(16));
            doubled.min(BACKOFF.1).max(*retry_after)
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::AgentId;

    use super::{super::note::SectionSubject, *};

    fn request(number: u64, commit: &str) -> MergeRequest {
        MergeRequest { number, commit: commit.to_owned(), is_of_fork: false }
    }

    fn unavailable(seconds: u64) -> MergeRequestError {
        MergeRequestError::Unavailable {
            message: "429".to_owned(),
            retry_after: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn looks_follow_a_push_and_then_the_period() {
        let begin = Instant::now();
        let mut looks = LookTimes::new(begin);
        let seconds = |looks: &LookTimes| (looks.next() - begin).as_secs();
        let at = |seconds| begin + Duration::from_secs(seconds);
        looks.looked(None, at(1));
        assert_eq!(seconds(&looks), 121);
        looks.push(at(50));
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(seconds(&looks));
            looks.looked(None, looks.next());
        }
        assert_eq!(seen, [51, 60, 110, 230]);
        looks.push(at(250));
        looks.looked(Some(at(251)), at(251));
        looks.looked(None, at(251));
        assert_eq!(seconds(&looks), 260, "a look at once does not replace those after a push");
        looks.looked(None, at(260));
        for push in 300..330 {
            looks.push(at(push));
        }
        assert_eq!(seconds(&looks), 301, "pushes do not defer a look");
    }

    #[test]
    fn failed_look_waits_longer_and_no_push_ends_the_wait() {
        let begin = Instant::now();
        let mut looks = LookTimes::new(begin);
        let mut waits = Vec::new();
        for error in
            [unavailable(1), unavailable(1), unavailable(60), MergeRequestError::Refused(String::new())]
        {
            looks.failed(&error, begin);
            looks.push(begin);
            waits.push((looks.next() - begin).as_secs());
        }
        assert_eq!(waits, [5, 10, 60, 600]);
        looks.looked(None, begin);
        looks.push(begin);
        assert_eq!(looks.next() - begin, AFTER_PUSH[0]);
    }

    #[test]
    fn merge_request_is_previewed_once_for_each_head_and_not_too_often() {
        let (begin, mut progress) = (Instant::now(), PreviewProgress::default());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let (first, second, third) = (request(1, "a"), request(1, "b"), request(1, "c"));
        assert!(progress.is_due(&first, begin));
        progress.finish(&first, Ok(()), begin);
        assert!(!progress.is_due(&first, at(3600)), "it has its preview");
        assert!(!progress.is_due(&second, at(29)));
        assert_eq!(progress.due(std::slice::from_ref(&third)), Some(at(30)), "only the last push counts");
        assert!(progress.is_due(&third, at(30)));
        progress.finish(&third, Err(&unavailable(90)), at(30));
        assert_eq!(progress.due(std::slice::from_ref(&third)), Some(at(120)), "GitLab has asked for it");
        progress.finish(&third, Err(&unavailable(1)), at(120));
        assert_eq!(progress.due(std::slice::from_ref(&third)), Some(at(130)));
        progress.finish(&third, Ok(()), at(130));
        assert_eq!(progress.due(std::slice::from_ref(&third)), None);
        let refused = MergeRequestError::Refused(String::new());
        progress.finish(&first, Err(&refused), at(200));
        assert_eq!(progress.due(std::slice::from_ref(&first)), Some(at(800)));
        assert_eq!(progress.due(std::slice::from_ref(&second)), Some(at(230)), "it may be accepted");
        progress.retain(&[request(2, "a")]);
        assert!(progress.attempts.is_empty());
    }

    #[test]
    fn section_is_kept_until_it_is_written() {
        let (now, mut progress) = (Instant::now(), PreviewProgress::default());
        let (request, newer) = (request(1, "a"), request(1, "b"));
        let name = "prod".parse().unwrap();
        let subject = SectionSubject { agent: (AgentId(7), &name), project: "shop", commit: "a" };
        let section = subject.diff("**1 to change**", false);
        progress.keep_section(&request, &section);
        progress.finish(&request, Err(&unavailable(1)), now);
        assert_eq!((progress.section(&request), progress.section(&newer)), (Some(section), None));
        progress.finish(&request, Ok(()), now);
        assert_eq!(progress.section(&request), None);
    }
}
