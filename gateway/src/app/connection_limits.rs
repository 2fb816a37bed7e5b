//! Divides the file descriptors of the process among its listeners.
//!
//! A listener without free descriptors cannot accept. Callers must not use up the descriptors of probes: the kubelet would
//! kill a kas that serves its agents well.

/// Descriptors for other uses: files, runtimes, Redis, connections to other replicas.
const RESERVED: u64 = 128;

/// The number of connections that each listener may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionLimits {
    /// `agent.listen`.
    pub(super) agent: usize,
    /// `agent.kubernetes_api.listen`.
    pub(super) public: usize,
    /// `private_api.listen`.
    pub(super) private: usize,
    /// `api.listen`.
    pub(super) api: usize,
    /// `web.listen`.
    pub(super) web: usize,
    /// `observability.listen`.
    pub(super) observability: usize,
}

impl ConnectionLimits {
    /// Returns reduced limits that fit into `limit` open files, or `None` if these limits fit.
    ///
    /// The internal listeners keep theirs up to a sixteenth or an eighth of the total. Agents and callers get half of the rest
    /// each, and more if the other one needs less.
    pub(super) fn reduced_to(self, limit: u64) -> Option<Self> {
        let available = usize::try_from(limit - RESERVED.min(limit / 2)).unwrap_or(usize::MAX);
        if self.sum() <= available {
            return None;
        }
        let observability = self.observability.min(available / 16).max(1);
        let api = self.api.min(available / 16).max(1);
        let web = self.web.min(available / 16);
        let private = self.private.min(available / 8).max(1);
        let rest = available.saturating_sub(observability + api + web + private);
        let agent = self.agent.min((rest / 2).max(rest.saturating_sub(self.public))).max(1);
        let public = self.public.min(rest.saturating_sub(agent)).max(1);
        Some(Self { agent, public, private, api, web, observability })
    }

    /// Returns the connections of all listeners.
    pub(super) fn sum(self) -> usize {
        self.agent + self.public + self.private + self.api + self.web + self.observability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURED: ConnectionLimits = ConnectionLimits {
        agent: 20_000,
        public: 10_000,
        private: 4000,
        api: 1000,
        web: 0,
        observability: 100,
    };

    #[test]
    fn high_limit_changes_nothing() {
        assert_eq!(CONFIGURED.reduced_to(1 << 20), None);
        assert_eq!(CONFIGURED.reduced_to(u64::MAX), None);
    }

    #[test]
    fn low_limits_leave_some_for_each_listener_and_are_not_exceeded() {
        for limit in [64, 256, 1024, 4096, 30_000] {
            let shares = CONFIGURED.reduced_to(limit).unwrap();
            assert!(shares.sum() as u64 + RESERVED.min(limit / 2) <= limit, "{limit}: {shares:?}");
            assert!(shares.observability >= 2 && shares.agent >= 12 && shares.public >= 12, "{shares:?}");
        }
        let shares = CONFIGURED.reduced_to(1024).unwrap();
        assert_eq!(
            shares,
            ConnectionLimits { agent: 336, public: 336, private: 112, api: 56, web: 0, observability: 56 }
        );
    }

    #[test]
    fn listener_that_needs_less_leaves_it_to_the_other() {
        let few_callers = ConnectionLimits { public: 10, ..CONFIGURED }.reduced_to(1024).unwrap();
        assert_eq!((few_callers.agent, few_callers.public), (662, 10));
        let few_agents = ConnectionLimits { agent: 10, ..CONFIGURED }.reduced_to(1024).unwrap();
        assert_eq!((few_agents.agent, few_agents.public), (10, 662));
    }
}
