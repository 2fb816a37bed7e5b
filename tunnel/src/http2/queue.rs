//! Those who wait because the other end takes no more requests at once.

use std::{
    collections::VecDeque,
    task::{Context, Waker},
};

/// First come, first served. Who is called and does not want to any more lets the next one go.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<(Ticket, Waker)>,
    tickets: u64,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Queue {
    /// Takes a place, or goes on waiting at the one that it had, in front of whoever came later.
    pub(super) fn wait(&mut self, ticket: &mut Option<Ticket>, cx: &Context<'_>) {
        let waker = cx.waker().clone();
        let Some(ticket) = *ticket else {
            self.tickets += 1;
            *ticket = Some(Ticket(self.tickets));
            return self.waiting.push_back((Ticket(self.tickets), waker));
        };
        match self.waiting.iter_mut().find(|(other, _)| *other == ticket) {
            Some((_, before)) => *before = waker,
            // Called, and somebody who had not waited was quicker.
            None => self.waiting.push_front((ticket, waker)),
        }
    }

    /// Who had this place needs it no more: it had its turn, called or not.
    pub(super) fn served(&mut self, ticket: Ticket) {
        self.waiting.retain(|(other, _)| *other != ticket);
    }

    /// Whose turn it is.
    pub(super) fn next(&mut self) -> Option<Waker> {
        self.waiting.pop_front().map(|(_, waker)| waker)
    }

    /// Everybody: things have changed.
    pub(super) fn all(&mut self) -> impl Iterator<Item = Waker> {
        std::mem::take(&mut self.waiting).into_iter().map(|(_, waker)| waker)
    }

    /// Gives a place up; who was called already lets the next one go.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waker> {
        match self.waiting.iter().position(|(other, _)| *other == ticket) {
            Some(place) => {
                self.waiting.remove(place);
                None
            }
            None => self.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn wait(queue: &mut Queue) -> (Ticket, Arc<Calls>) {
        let (calls, mut ticket) = (Arc::<Calls>::default(), None);
        queue.wait(&mut ticket, &Context::from_waker(&Arc::clone(&calls).into()));
        (ticket.unwrap(), calls)
    }

    /// Somebody may ask for a reason of its own just when there is room.
    #[test]
    fn who_had_its_turn_without_being_called_is_not_called() {
        let mut queue = Queue::default();
        let ((served, first), (_, second)) = (wait(&mut queue), wait(&mut queue));
        queue.served(served);
        queue.next().unwrap().wake();
        assert_eq!((first.0.load(Relaxed), second.0.load(Relaxed)), (0, 1));
    }

    #[test]
    fn who_was_called_and_leaves_lets_the_next_one_go() {
        let mut queue = Queue::default();
        let ((called, _), (left, _), (_, third)) = (wait(&mut queue), wait(&mut queue), wait(&mut queue));
        queue.next().unwrap().wake();
        assert!(queue.leave(left).is_none());
        queue.leave(called).unwrap().wake();
        assert_eq!(third.0.load(Relaxed), 1);
    }
}
