//! The number of `Connect` streams of one connection. No I/O.

/// The number of streams that wait for a request.
const MIN_IDLE: usize = 2;
/// The most streams in one connection.
const MAX_STREAMS: usize = 500;
/// The streams that are opened at once when requests leave fewer than [`MIN_IDLE`] idle.
const STEP: usize = 10;

/// Returns the number of streams to open, if so many wait for a request and carry one.
pub(super) fn streams_to_open(idle: usize, active: usize) -> usize {
    let wanted = match (idle, active) {
        (MIN_IDLE.., _) => 0,
        // Without requests, a stream is missing since kas has ended it.
        (_, 0) => MIN_IDLE - idle,
        _ => STEP,
    };
    wanted.min(MAX_STREAMS.saturating_sub(idle + active))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_begins_with_two_streams_and_grows_in_steps() {
        assert_eq!(streams_to_open(0, 0), 2);
        assert_eq!(streams_to_open(2, 0), 0);
        assert_eq!(streams_to_open(1, 1), 10);
        assert_eq!(streams_to_open(11, 1), 0);
        assert_eq!(streams_to_open(1, 11), 10);
    }

    #[test]
    fn stream_that_kas_ended_is_replaced_only_below_two() {
        assert_eq!(streams_to_open(1, 0), 1);
        assert_eq!(streams_to_open(11, 0), 0);
    }

    #[test]
    fn connection_has_at_most_500_streams() {
        assert_eq!(streams_to_open(1, 494), 5);
        assert_eq!(streams_to_open(0, 500), 0);
    }
}
