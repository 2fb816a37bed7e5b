//! The schedule of the requests of one connection.
//!
//! A closed loop sends the next request after the last response: a target that stalls receives fewer requests, and its
//! stalls hardly show ("coordinated omission"). An open loop has a fixed schedule: the latency of a request that had to
//! wait for the previous response counts from the moment it was due.

use std::time::{Duration, Instant};

/// The schedule of one connection.
#[derive(Debug)]
pub struct Schedule {
    /// `None` in a closed loop.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    interval: Duration,
    next: Instant,
}

/// The time to send the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Send at once. Latency counts from this moment, which is in the past if the request had to wait.
    Now(Instant),
    /// Send at this moment.
    At(Instant),
}

impl Schedule {
    /// Creates the schedule of one of `connections` connections, which together send `rate` requests per second. Without a
    /// rate the loop is closed.
    ///
    /// `phase`, from [0, 1), is the offset in the first interval, so that the connections do not send at the same moment.
    pub fn new(rate: Option<f64>, connections: usize, start: Instant, phase: f64) -> Self {
        let open = rate.map(|rate| {
            let interval = Duration::from_secs_f64(connections as f64 / rate);
            Open { interval, next: start + interval.mul_f64(phase) }
        });
        Self { open }
    }

    /// Returns when to send the next request, and advances the schedule.
    pub fn next(&mut self, now: Instant) -> Due {
        let Some(open) = &mut self.open else { return Due::Now(now) };
        let due = open.next;
        open.next += open.interval;
        if due <= now { Due::Now(due) } else { Due::At(due) }
    }

    /// Returns the moments before `end` at which a request was due but not sent.
    pub fn unsent(self, end: Instant) -> impl Iterator<Item = Instant> {
        let open = self.open;
        let first = open.as_ref().map(|open| open.next);
        let later = move |due: &Instant| open.as_ref().map(|open| *due + open.interval);
        std::iter::successors(first, later).take_while(move |due| *due < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn closed_loop_is_always_due() {
        let now = Instant::now();
        let mut schedule = Schedule::new(None, 4, now, 0.5);
        assert_eq!(schedule.next(now + SECOND), Due::Now(now + SECOND));
        assert_eq!(schedule.unsent(now + 10 * SECOND).count(), 0);
    }

    #[test]
    fn open_loop_keeps_its_rate() {
        let start = Instant::now();
        // Four connections and two requests per second: each connection sends one in two seconds.
        let mut schedule = Schedule::new(Some(2.0), 4, start, 0.5);
        assert_eq!(schedule.next(start), Due::At(start + SECOND));
        assert_eq!(schedule.next(start + SECOND), Due::At(start + 3 * SECOND));
        // The response took until second 8: the requests of seconds 5 and 7 count from then.
        assert_eq!(schedule.next(start + 8 * SECOND), Due::Now(start + 5 * SECOND));
        assert_eq!(schedule.next(start + 8 * SECOND), Due::Now(start + 7 * SECOND));
        assert_eq!(schedule.next(start + 8 * SECOND), Due::At(start + 9 * SECOND));
    }

    #[test]
    fn unsent_requests_of_a_stall_are_counted() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Some(1.0), 1, start, 0.0);
        assert_eq!(schedule.next(start), Due::Now(start));
        let unsent: Vec<_> = schedule.unsent(start + 4 * SECOND).collect();
        assert_eq!(unsent, [start + SECOND, start + 2 * SECOND, start + 3 * SECOND]);
    }
}
