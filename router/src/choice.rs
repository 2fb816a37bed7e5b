//! Which of an agent's tunnels carries a request: pure.

/// What kind of load a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Answered and gone: somebody waits for it.
    Short,
    /// Watch, `logs -f`, exec, port-forward: stays, and may be bulk.
    Long,
}

/// What a tunnel carries now, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) short: u32,
    pub(crate) long: u32,
    /// The tunnel is about to be left: better than none.
    pub(crate) draining: bool,
    /// It is driven by another core than the one that asks.
    pub(crate) far: bool,
}

/// A long stream weighs as much as this many short ones, so that interactive requests find the tunnel without bulk.
const LONG: u32 = 4;

/// So many requests more than twice those of a far tunnel a near one must have before the far one is taken: each wake-up
/// of another core costs both of them some microseconds, and bulk in the same tunnel costs more.
const SLACK: u32 = 8;

/// The index of the least loaded candidate; among equals the first from `start` on, so that equals take turns. `None`
/// is no candidate.
pub(crate) fn least_loaded(
    candidates: impl ExactSizeIterator<Item = Option<Load>>,
    start: usize,
) -> Option<usize> {
    let count = candidates.len();
    let loads = candidates.enumerate().filter_map(|(index, load)| Some((index, load?)));
    let least = loads
        .min_by_key(|(index, load)| (load.draining, load.cost(), (index + count - start % count) % count));
    least.map(|(index, _)| index)
}

impl Load {
    fn cost(self) -> u32 {
        let weight = self.long.saturating_mul(LONG).saturating_add(self.short);
        if self.far { weight.saturating_mul(2).saturating_add(SLACK) } else { weight }
    }
}

#[cfg(test)]
mod tests {
    use super::Load;

    const fn load(short: u32, long: u32) -> Load {
        Load { short, long, draining: false, far: false }
    }

    fn least_loaded(loads: &[Load], start: usize) -> Option<usize> {
        super::least_loaded(loads.iter().copied().map(Some), start)
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

    #[test]
    fn home_is_left_only_for_a_tunnel_with_much_less_to_carry() {
        let far = |load| Load { far: true, ..load };
        assert_eq!(least_loaded(&[far(load(0, 0)), load(9, 0)], 0), Some(0));
        assert_eq!(least_loaded(&[far(load(0, 0)), load(7, 0)], 0), Some(1));
        assert_eq!(least_loaded(&[far(load(20, 0)), load(47, 0)], 0), Some(1));
        assert_eq!(least_loaded(&[far(load(20, 0)), load(49, 0)], 0), Some(0));
        assert_eq!(least_loaded(&[far(load(0, 0)), load(0, 3)], 0), Some(0), "bulk at home");
        assert_eq!(least_loaded(&[far(load(3, 0)), far(load(1, 0))], 0), Some(1), "nobody is at home");
    }

    #[test]
    fn who_is_no_candidate_is_passed_over() {
        let loads = [None, Some(load(9, 0)), None];
        assert_eq!(super::least_loaded(loads.into_iter(), 2), Some(1));
        assert_eq!(super::least_loaded([None].into_iter(), 0), None);
    }
}
