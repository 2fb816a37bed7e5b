//! When the requests of one connection are due.
//!
//! A closed loop sends the next request when the last one was answered: a target that stalls is asked less, and its
//! stalls hardly show ("coordinated omission"). An open loop has a schedule that the target cannot change: a request
//! that had to wait for the answer before it counts from the moment it was due.

use std::time::{Duration, Instant};

/// The requests of one connection.
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

/// When the next request is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At once; its latency counts from this moment, which is in the past if it had to wait.
    Now(Instant),
    /// Later.
    At(Instant),
}

impl Schedule {
    /// One of `connections` connections, which together send `rate` requests a second, or as many as are answered.
    /// `phase` is from [0, 1): where in its first interval it begins, so that not all send at the same moment.
    pub fn new(rate: Option<f64>, connections: usize, start: Instant, phase: f64) -> Self {
        let open = rate.map(|rate| {
            let interval = Duration::from_secs_f64(connections as f64 / rate);
            Open { interval, next: start + interval.mul_f64(phase) }
        });
        Self { open }
    }

    /// The next request. Each call is one request.
    pub fn next(&mut self, now: Instant) -> Due {
        let Some(open) = &mut self.open else { return Due::Now(now) };
        let due = open.next;
        open.next += open.interval;
        if due <= now { Due::Now(due) } else { Due::At(due) }
    }

    /// The moments before `end` at which a request was due and was not sent.
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
    fn a_closed_loop_is_always_due() {
        let now = Instant::now();
        let mut schedule = Schedule::new(None, 4, now, 0.5);
        assert_eq!(schedule.next(now + SECOND), Due::Now(now + SECOND));
        assert_eq!(schedule.unsent(now + 10 * SECOND).count(), 0);
    }

    #[test]
    fn an_open_loop_keeps_its_pace_whatever_the_target_does() {
        let start = Instant::now();
        // Four connections, two requests a second: one each in two seconds.
        let mut schedule = Schedule::new(Some(2.0), 4, start, 0.5);
        assert_eq!(schedule.next(start), Due::At(start + SECOND));
        assert_eq!(schedule.next(start + SECOND), Due::At(start + 3 * SECOND));
        // The answer took until second 8: what was due at 5 and 7 counts from then.
        assert_eq!(schedule.next(start + 8 * SECOND), Due::Now(start + 5 * SECOND));
        assert_eq!(schedule.next(start + 8 * SECOND), Due::Now(start + 7 * SECOND));
        assert_eq!(schedule.next(start + 8 * SECOND), Due::At(start + 9 * SECOND));
    }

    #[test]
    fn what_a_stalled_target_kept_from_being_sent_is_known() {
        let start = Instant::now();
        let mut schedule = Schedule::new(Some(1.0), 1, start, 0.0);
        assert_eq!(schedule.next(start), Due::Now(start));
        let unsent: Vec<_> = schedule.unsent(start + 4 * SECOND).collect();
        assert_eq!(unsent, [start + SECOND, start + 2 * SECOND, start + 3 * SECOND]);
    }
}
