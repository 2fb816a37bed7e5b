//! The beats of one task, in ticks of the thread that counts them.

use std::time::Duration;

/// Ticks without a beat after which the task is stalled.
const STALLED: u32 = 15;
/// Ticks without a beat after which the process has to end. The kubelet would wait out the grace period of the pod, which may
/// be an hour.
const FATAL: u32 = 45;
/// Ticks of a window in which the largest delay is kept. There are two, so that it is shown for half a minute at least.
const WINDOW: u32 = 30;

/// The state of one task, or of a process: the worst of its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TaskState {
    Alive,
    Stalled,
    /// Stalled for so long that the process has to end.
    Fatal,
}

/// The age of the last beat, and how late the beats of the last minute were.
#[derive(Debug)]
pub(super) struct HeartbeatHistory {
    period: Duration,
    /// Ticks since the last beat.
    age: u32,
    /// The largest delays of the current window and of the one before.
    late: [Duration; 2],
    /// Ticks of the current window.
    ticks: u32,
}

impl HeartbeatHistory {
    pub(super) fn new(period: Duration) -> Self {
        Self { period, age: 0, late: [Duration::ZERO; 2], ticks: 0 }
    }

    /// Counts a tick. `beat` is the delay of the latest beat since the tick before, if there was a beat.
    pub(super) fn tick(&mut self, beat: Option<Duration>) {
        if self.ticks == WINDOW {
            (self.ticks, self.late) = (0, [Duration::ZERO, self.late[0]]);
        }
        self.ticks += 1;
        match beat {
            Some(late) => (self.age, self.late[0]) = (0, self.late[0].max(late)),
            None => self.age = self.age.saturating_add(1),
        }
    }

    pub(super) fn state(&self) -> TaskState {
        match self.age {
            ..STALLED => TaskState::Alive,
            STALLED..FATAL => TaskState::Stalled,
            FATAL.. => TaskState::Fatal,
        }
    }

    /// Returns the time since the last beat, in whole ticks.
    pub(super) fn age(&self) -> Duration {
        self.period * self.age
    }

    /// Returns the largest delay of the last minute. A missing beat counts, too: the next one is late already.
    pub(super) fn lag(&self) -> Duration {
        // Beats and ticks are not in phase: one tick without a beat is no delay.
        let missing = self.period * self.age.saturating_sub(1);
        self.late.into_iter().fold(missing, Duration::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn history() -> HeartbeatHistory {
        HeartbeatHistory::new(SECOND)
    }

    #[test]
    fn age_in_ticks_decides_the_state() {
        let mut history = history();
        for tick in 1..=100 {
            history.tick(None);
            let expected = match tick {
                ..15 => TaskState::Alive,
                15..45 => TaskState::Stalled,
                45.. => TaskState::Fatal,
            };
            assert_eq!((history.state(), history.age()), (expected, tick * SECOND));
        }
        history.tick(Some(Duration::ZERO));
        assert_eq!((history.state(), history.age()), (TaskState::Alive, Duration::ZERO));
    }

    #[test]
    fn largest_delay_is_kept_for_half_a_minute_to_a_minute() {
        let mut history = history();
        for offset in 0..WINDOW {
            history.tick(Some(3 * SECOND));
            let ticks = (0..).take_while(|_| {
                history.tick(Some(Duration::ZERO));
                history.lag() == 3 * SECOND
            });
            assert!((WINDOW..2 * WINDOW).contains(&(ticks.count() as u32)), "{offset}");
            for _ in 0..offset {
                history.tick(Some(Duration::ZERO));
            }
        }
    }

    #[test]
    fn missing_beat_is_a_delay_from_the_second_tick_on() {
        let mut history = history();
        history.tick(Some(Duration::ZERO));
        for (tick, lag) in [(1, 0), (2, 1), (3, 2), (4, 3)] {
            history.tick(None);
            assert_eq!(history.lag(), lag * SECOND, "{tick}");
        }
        history.tick(Some(4 * SECOND));
        assert_eq!(history.lag(), 4 * SECOND);
    }
}
