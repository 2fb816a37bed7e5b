//! The replica of kas that is the source of this pod: exactly one while this pod leads, and none otherwise.

use std::collections::BTreeMap;

use proto::gitops::SourceNotice;
use tokio::sync::mpsc;

/// The notices that a subscriber may have unread. One that reads none of them is not the source any more.
pub(super) const QUEUE: usize = 64;

/// The subscriptions of replicas.
#[derive(Debug, Default)]
pub(super) struct Sources {
    next: u64,
    subscribers: BTreeMap<u64, Subscriber>,
    active: Option<u64>,
    leading: bool,
}

/// The subscription of one replica.
#[derive(Debug)]
struct Subscriber {
    notices: mpsc::Sender<SourceNotice>,
    /// Whether the replica has projects for the agent.
    has_projects: bool,
}

impl Sources {
    /// Adds a subscription and returns its number. `has_projects` says whether the replica has projects for the agent.
    pub(super) fn add(&mut self, notices: mpsc::Sender<SourceNotice>, has_projects: bool) -> u64 {
        self.next += 1;
        // The queue is empty.
        let _ = notices.try_send(SourceNotice::Standby);
        self.subscribers.insert(self.next, Subscriber { notices, has_projects });
        self.choose();
        self.next
    }

    /// Removes a subscription, and chooses another source if it was the source.
    pub(super) fn remove(&mut self, number: u64) {
        self.subscribers.remove(&number);
        self.active = self.active.filter(|active| *active != number);
        self.choose();
    }

    /// Sets whether this pod leads.
    pub(super) fn set_leading(&mut self, leading: bool) {
        self.leading = leading;
        if !leading && let Some(active) = self.active.take() {
            self.notify(active, SourceNotice::Standby);
        }
        self.choose();
    }

    /// Ends all subscriptions, because agentk stops.
    pub(super) fn close(&mut self) {
        *self = Self { next: self.next, ..Self::default() };
    }

    /// Asks the source for the files of a project.
    pub(super) fn want(&mut self, project: &str) {
        if let Some(active) = self.active
            && !self.notify(active, SourceNotice::Wanted(project.to_owned()))
        {
            self.remove(active);
        }
    }

    /// Asks any replica, the source first. Returns false if there is none.
    pub(super) fn ask(&mut self, notice: &SourceNotice) -> bool {
        while let Some(number) = self.active.or_else(|| self.best()) {
            if self.notify(number, notice.clone()) {
                return true;
            }
            self.remove(number);
        }
        false
    }

    fn choose(&mut self) {
        while self.leading
            && let Some(best) = self.best().filter(|best| self.is_better_than_active(*best))
        {
            if let Some(former) = self.active.take()
                && !self.notify(former, SourceNotice::Standby)
            {
                // It would go on to send.
                self.subscribers.remove(&former);
            }
            if self.notify(best, SourceNotice::Active) {
                self.active = Some(best)
            } else {
                drop(self.subscribers.remove(&best))
            }
        }
    }

    /// Returns the first subscription of a replica that has projects, or else the first one.
    fn best(&self) -> Option<u64> {
        let with_projects = self.subscribers.iter().find(|(_, subscriber)| subscriber.has_projects);
        with_projects.or_else(|| self.subscribers.first_key_value()).map(|(number, _)| *number)
    }

    /// Returns whether a subscription replaces the source. A replica that has not read the newest configuration may have no projects, and
    /// must not orphan those of another replica.
    fn is_better_than_active(&self, number: u64) -> bool {
        let has_projects =
            |number: &u64| self.subscribers.get(number).is_some_and(|subscriber| subscriber.has_projects);
        self.active.is_none_or(|active| has_projects(&number) && !has_projects(&active))
    }

    fn notify(&self, number: u64, notice: SourceNotice) -> bool {
        self.subscribers.get(&number).is_some_and(|subscriber| subscriber.notices.try_send(notice).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscribe(sources: &mut Sources) -> (u64, mpsc::Receiver<SourceNotice>) {
        let (sender, receiver) = mpsc::channel(4);
        (sources.add(sender, true), receiver)
    }

    fn notices(receiver: &mut mpsc::Receiver<SourceNotice>) -> Vec<SourceNotice> {
        std::iter::from_fn(|| receiver.try_recv().ok()).collect()
    }

    #[test]
    fn leader_has_one_source_and_another_one_when_it_is_lost() {
        use SourceNotice::{Active, Standby};

        let mut sources = Sources::default();
        let (first, mut of_first) = subscribe(&mut sources);
        let (_, mut of_second) = subscribe(&mut sources);
        assert_eq!((notices(&mut of_first), notices(&mut of_second)), (vec![Standby], vec![Standby]));
        sources.set_leading(true);
        sources.set_leading(true);
        assert_eq!((notices(&mut of_first), notices(&mut of_second)), (vec![Active], vec![]));
        sources.remove(first);
        assert_eq!(notices(&mut of_second), [Active]);
        sources.set_leading(false);
        assert_eq!(notices(&mut of_second), [Standby]);
    }

    #[test]
    fn replica_with_projects_replaces_a_source_that_has_none() {
        use SourceNotice::{Active, Standby};

        let mut sources = Sources::default();
        sources.set_leading(true);
        let (sender, mut of_empty) = mpsc::channel(8);
        let empty = sources.add(sender, false);
        assert_eq!(notices(&mut of_empty), [Standby, Active]);
        let (first, mut of_first) = subscribe(&mut sources);
        assert_eq!((notices(&mut of_empty), notices(&mut of_first)), (vec![Standby], vec![Standby, Active]));
        let (second, mut of_second) = subscribe(&mut sources);
        sources.remove(first);
        assert_eq!((notices(&mut of_empty), notices(&mut of_second)), (vec![], vec![Standby, Active]));
        assert!(sources.ask(&SourceNotice::Wanted("group/app".to_owned())));
        sources.remove(second);
        assert_eq!((notices(&mut of_empty), notices(&mut of_second).len()), (vec![Active], 1));
        sources.remove(empty);
        assert!(!sources.ask(&Active));
    }

    #[test]
    fn pod_that_does_not_lead_can_ask_any_replica() {
        let notice = || SourceNotice::Wanted("group/app".to_owned());
        let mut sources = Sources::default();
        assert!(!sources.ask(&notice()));
        let (_, mut first) = subscribe(&mut sources);
        let (second, mut of_second) = subscribe(&mut sources);
        assert!(sources.ask(&notice()));
        assert_eq!(notices(&mut first), [SourceNotice::Standby, notice()]);
        drop(first);
        assert!(sources.ask(&notice()), "the other one is asked");
        assert_eq!(notices(&mut of_second), [SourceNotice::Standby, notice()]);
        sources.remove(second);
        assert!(!sources.ask(&notice()));
    }

    #[test]
    fn source_that_reads_nothing_is_replaced() {
        let mut sources = Sources::default();
        sources.set_leading(true);
        let (_, mut deaf) = subscribe(&mut sources);
        let (_, mut other) = subscribe(&mut sources);
        (0..3).for_each(|_| sources.want("group/app"));
        assert_eq!(notices(&mut deaf).len(), 4);
        assert_eq!(notices(&mut other), [SourceNotice::Standby, SourceNotice::Active]);
    }
}
