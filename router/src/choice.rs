//! Which of an agent's tunnels carries a request: pure.

/// What kind of load a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Answered and gone: somebody waits for it.
    Short,
    /// Watch, `logs -f`, exec, port-forward: stays, and may be bulk.
    Long,
}

/// What a tunnel carries now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) short: u32,
    pub(crate) long: u32,
    /// The tunnel is about to be left: better than none.
    pub(crate) draining: bool,
}

/// A long stream weighs as much as this many short ones, so that interactive requests find the tunnel without bulk.
const LONG: u32 = 4;

/// The index of the least loaded candidate; among equals the first from `start` on, so that equals take turns.
pub(crate) fn least_loaded(candidates: &[Load], start: usize) -> Option<usize> {
    let count = candidates.len();
    (0..count).map(|step| start.wrapping_add(step) % count).min_by_key(|&index| {
        let load = candidates[index];
        (load.draining, load.long.saturating_mul(LONG).saturating_add(load.short))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn load(short: u32, long: u32) -> Load {
        Load { short, long, draining: false }
    }

    #[test]
    fn no_candidate_no_choice() {
        assert_eq!(least_loaded(&[], 7), None);
    }

    #[test]
    fn the_least_loaded_wins_and_long_streams_weigh_more() {
        assert_eq!(least_loaded(&[load(3, 0), load(0, 1), load(2, 0)], 0), Some(2));
        assert_eq!(least_loaded(&[load(5, 0), load(0, 1)], 0), Some(1));
    }

    #[test]
    fn a_draining_tunnel_is_the_last_resort() {
        let draining = Load { draining: true, ..load(0, 0) };
        assert_eq!(least_loaded(&[draining, load(99, 9)], 0), Some(1));
        assert_eq!(least_loaded(&[draining], 0), Some(0));
    }

    #[test]
    fn equals_take_turns() {
        let equals = [load(1, 0); 3];
        assert_eq!([0, 1, 2, 3].map(|start| least_loaded(&equals, start).unwrap()), [0, 1, 2, 0]);
        assert!(least_loaded(&equals, usize::MAX).is_some());
    }
}
