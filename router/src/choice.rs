//! The choice between the tunnels of an agent. It does no I/O.

/// The load that a request puts on its tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestClass {
    /// A request that ends with its response; its caller waits for it.
    Short,
    /// A watch, `logs -f`, exec or port-forward: a stream that stays open and may be bulk.
    Streaming,
}

/// The present load of a tunnel, and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TunnelLoad {
    pub(crate) short: u32,
    pub(crate) long: u32,
    /// The tunnel drains: it is chosen only if no other tunnel can be.
    pub(crate) draining: bool,
    /// The tunnel runs on another core than the request.
    pub(crate) on_other_core: bool,
}

/// The cost of a long stream in short ones, so that interactive requests take a tunnel without bulk.
const LONG_COST: u32 = 4;

/// A tunnel on another core costs 2×load + SLACK: each wake-up of another core costs both cores some microseconds, but
/// bulk in the same tunnel costs more.
const SLACK: u32 = 8;

/// Returns the index of the least loaded candidate. `None` in `candidates` is a tunnel that cannot be chosen.
///
/// Among equals the first from `start` on is chosen; a `start` that grows with each request makes equals take turns.
pub(crate) fn least_loaded(
    candidates: impl ExactSizeIterator<Item = Option<TunnelLoad>>,
    start: usize,
) -> Option<usize> {
    let count = candidates.len();
    let loads = candidates.enumerate().filter_map(|(index, load)| Some((index, load?)));
    let least = loads
        .min_by_key(|(index, load)| (load.draining, load.cost(), (index + count - start % count) % count));
    least.map(|(index, _)| index)
}

impl TunnelLoad {
    fn cost(self) -> u32 {
        let load = self.long.saturating_mul(LONG_COST).saturating_add(self.short);
        if self.on_other_core { load.saturating_mul(2).saturating_add(SLACK) } else { load }
    }
}

#[cfg(test)]
mod tests {
    use super::TunnelLoad;

    const fn load(short: u32, long: u32) -> TunnelLoad {
        TunnelLoad { short, long, draining: false, on_other_core: false }
    }

    fn least_loaded(loads: &[TunnelLoad], start: usize) -> Option<usize> {
        super::least_loaded(loads.iter().copied().map(Some), start)
    }

    #[test]
    fn no_candidates_is_none() {
        assert_eq!(least_loaded(&[], 7), None);
    }

    #[test]
    fn least_loaded_wins_and_long_streams_cost_more() {
        assert_eq!(least_loaded(&[load(3, 0), load(0, 1), load(2, 0)], 0), Some(2));
        assert_eq!(least_loaded(&[load(5, 0), load(0, 1)], 0), Some(1));
    }

    #[test]
    fn draining_tunnel_is_last() {
        let draining = TunnelLoad { draining: true, ..load(0, 0) };
        assert_eq!(least_loaded(&[draining, load(99, 9)], 0), Some(1));
        assert_eq!(least_loaded(&[draining], 0), Some(0));
    }

    #[test]
    fn equal_loads_take_turns() {
        let equals = [load(1, 0); 3];
        assert_eq!([0, 1, 2, 3].map(|start| least_loaded(&equals, start).unwrap()), [0, 1, 2, 0]);
        assert!(least_loaded(&equals, usize::MAX).is_some());
    }

    #[test]
    fn tunnel_on_other_core_needs_much_less_load() {
        let on_other_core = |load| TunnelLoad { on_other_core: true, ..load };
        assert_eq!(least_loaded(&[on_other_core(load(0, 0)), load(9, 0)], 0), Some(0));
        assert_eq!(least_loaded(&[on_other_core(load(0, 0)), load(7, 0)], 0), Some(1));
        assert_eq!(least_loaded(&[on_other_core(load(20, 0)), load(47, 0)], 0), Some(1));
        assert_eq!(least_loaded(&[on_other_core(load(20, 0)), load(49, 0)], 0), Some(0));
        assert_eq!(
            least_loaded(&[on_other_core(load(0, 0)), load(0, 3)], 0),
            Some(0),
            "bulk on the local tunnel"
        );
        assert_eq!(
            least_loaded(&[on_other_core(load(3, 0)), on_other_core(load(1, 0))], 0),
            Some(1),
            "no local tunnel"
        );
    }

    #[test]
    fn excluded_tunnel_is_skipped() {
        let loads = [None, Some(load(9, 0)), None];
        assert_eq!(super::least_loaded(loads.into_iter(), 2), Some(1));
        assert_eq!(super::least_loaded([None].into_iter(), 0), None);
    }
}
