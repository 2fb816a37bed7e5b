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
