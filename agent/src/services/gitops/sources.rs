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
    subscribers: BTreeMap<u64, mpsc::Sender<SourceNotice>>,
    active: Option<u64>,
    leading: bool,
}

impl Sources {
    /// Adds a subscription and returns its number.
    pub(super) fn add(&mut self, subscriber: mpsc::Sender<SourceNotice>) -> u64 {
        self.next += 1;
        // The queue is empty.
        let _ = subscriber.try_send(SourceNotice::Standby);
        self.subscribers.insert(self.next, subscriber);
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
        let others = self.subscribers.keys().copied().filter(|number| Some(*number) != self.active);
        let numbers: Vec<u64> = self.active.into_iter().chain(others).collect();
        for number in numbers {
            if self.notify(number, notice.clone()) {
                return true;
            }
            self.remove(number);
        }
        false
    }

    fn choose(&mut self) {
        while self.leading && self.active.is_none() {
            let Some(number) = self.subscribers.keys().next().copied() else { return };
            match self.notify(number, SourceNotice::Active) {
                true => self.active = Some(number),
                false => drop(self.subscribers.remove(&number)),
            }
        }
    }

    fn notify(&self, number: u64, notice: SourceNotice) -> bool {
        self.subscribers.get(&number).is_some_and(|subscriber| subscriber.try_send(notice).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscribe(sources: &mut Sources) -> (u64, mpsc::Receiver<SourceNotice>) {
        let (sender, receiver) = mpsc::channel(4);
        (sources.add(sender), receiver)
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
