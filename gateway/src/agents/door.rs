//! How fast agents are let in: pure.

use std::time::Duration;

use tokio::time::Instant;

/// So many may come at once after a quiet while as come in this time.
const BURST: Duration = Duration::from_secs(1);
/// The latest turn that is given: whoever comes back to find others there is given another.
const LATEST: Duration = Duration::from_secs(60);

/// So many in a second. Who comes too early is given a turn, and turns are as far apart as those who are let in: of
/// thousands who come at once all know when to come again, and then they do not come at once.
#[derive(Debug)]
pub struct Door {
    each: Duration,
    /// Until then whoever was let in has taken up the time that was theirs.
    due: Instant,
    /// The last turn that was given.
    turn: Instant,
}

impl Door {
    /// For so many in a second.
    pub fn new(per_second: u32, now: Instant) -> Self {
        Self { each: Duration::from_secs(1) / per_second, due: now, turn: now }
    }

    /// Lets one in, or says how long they are to wait.
    pub fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        let due = self.due.max(now) + self.each;
        if due - now <= BURST {
            self.due = due;
            return Ok(());
        }
        self.turn = (self.turn.max(now) + self.each).min(now + LATEST);
        Err(self.turn - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 100;

    fn admitted(door: &mut Door, now: Instant, come: usize) -> usize {
        (0..come).filter(|_| door.admit(now).is_ok()).count()
    }

    #[test]
    fn so_many_at_once_and_then_as_time_passes() {
        let start = Instant::now();
        let mut door = Door::new(RATE, start);
        assert_eq!(admitted(&mut door, start, 1000), 100);
        let mut more = 0;
        for millisecond in 1..=2000 {
            more += admitted(&mut door, start + Duration::from_millis(millisecond), 10);
        }
        assert_eq!(more, 200);
        assert_eq!(admitted(&mut door, start + Duration::from_secs(60), 1000), 100, "after a quiet while");
    }

    #[test]
    fn everybody_of_a_crowd_is_let_in_at_the_first_turn_that_is_given() {
        let start = Instant::now();
        let mut door = Door::new(RATE, start);
        let mut turns: Vec<Duration> = (0..1000).filter_map(|_| door.admit(start).err()).collect();
        assert_eq!(turns.len(), 900);
        turns.sort();
        assert_eq!(turns.last(), Some(&Duration::from_secs(9)));
        // To the second, as a header says it, and at once then.
        let refused = turns.iter().filter(|turn| {
            let seconds = turn.as_millis().div_ceil(1000);
            door.admit(start + Duration::from_secs(seconds as u64)).is_err()
        });
        assert_eq!(refused.count(), 0);
    }

    #[test]
    fn turns_end_and_do_not_grow_with_those_who_come_too_early() {
        let start = Instant::now();
        let mut door = Door::new(RATE, start);
        let latest = (0..100_000).filter_map(|_| door.admit(start).err()).max();
        assert_eq!(latest, Some(LATEST));
        assert!(door.admit(start + Duration::from_secs(1)).is_ok());
    }
}
