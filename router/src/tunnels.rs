//! The tunnels that end on this replica.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
};

use cores::Core;
use parking_lot::Mutex;
use proto::{AgentId, ServiceName, TunnelId};
use tokio::sync::Notify;

use crate::choice::{Class, Load, least_loaded};

/// Agent → its tunnels on this replica. `T` is the handle that a request is sent with.
#[derive(Debug)]
pub struct LocalTunnels<T> {
    table: Mutex<Table<T>>,
    turn: AtomicUsize,
    /// Most requests in flight to one agent.
    limit: u32,
}

#[derive(Debug)]
struct Table<T> {
    tunnels: HashMap<AgentId, Vec<Arc<Entry<T>>>>,
    /// One for each agent that a caller ever waited for: bounded by the agents that exist.
    waiting: HashMap<AgentId, Arc<Notify>>,
}

#[derive(Debug)]
struct Entry<T> {
    id: TunnelId,
    services: Vec<Served>,
    handle: T,
    /// Which drives it, where that is known.
    core: Option<Core>,
    draining: AtomicBool,
}

/// A service of a tunnel, with the requests for it that are in flight. A tunnel's load is their sum.
#[derive(Debug)]
struct Served {
    name: ServiceName,
    short: AtomicU32,
    long: AtomicU32,
}

/// What the table says to a request.
#[derive(Debug)]
pub enum Choice<T> {
    /// This tunnel.
    Tunnel(Lease<T>),
    /// The agent has tunnels here, but serves only these.
    NotServed(Vec<ServiceName>),
    /// The agent has no tunnel here.
    NoTunnel,
    /// The agent has as many requests in flight as it may have.
    Busy,
}

/// A tunnel carrying one more request, until this is dropped.
#[derive(Debug)]
pub struct Lease<T> {
    entry: Arc<Entry<T>>,
    /// Which of the entry's services.
    service: usize,
    class: Class,
}

/// A tunnel as somebody sees it who only looks. It may be gone from the table already.
#[derive(Debug)]
pub struct View<T> {
    /// Whose it is.
    pub agent: AgentId,
    entry: Arc<Entry<T>>,
}

/// Requests for one service in one tunnel whose answers have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Of [`Class::Short`].
    pub short: u32,
    /// Of [`Class::Long`].
    pub long: u32,
}

/// A tunnel's place in the table, until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it removes the tunnel from the table"]
pub struct Registration<T> {
    tunnels: Arc<LocalTunnels<T>>,
    agent: AgentId,
    entry: Arc<Entry<T>>,
}

impl<T> LocalTunnels<T> {
    /// An empty table. `limit`: most requests in flight to one agent.
    pub fn new(limit: u32) -> Self {
        let table = Table { tunnels: HashMap::new(), waiting: HashMap::new() };
        Self { table: Mutex::new(table), turn: AtomicUsize::new(0), limit }
    }

    /// Adds a tunnel, which is driven by `core`, and wakes whoever waits for its agent.
    pub fn register(
        self: &Arc<Self>,
        agent: AgentId,
        id: TunnelId,
        services: Vec<ServiceName>,
        handle: T,
        core: Option<Core>,
    ) -> Registration<T> {
        let services = services.into_iter().map(Served::new).collect();
        let entry = Arc::new(Entry { id, services, handle, core, draining: AtomicBool::new(false) });
        let mut table = self.table.lock();
        table.tunnels.entry(agent).or_default().push(Arc::clone(&entry));
        let waiting = table.waiting.remove(&agent);
        drop(table);
        if let Some(waiting) = waiting {
            waiting.notify_waiters();
        }

        Registration { tunnels: Arc::clone(self), agent, entry }
    }

    /// The least loaded tunnel of the agent that serves this, leaving out those in `tried`. Those that are driven by the
    /// core `near` are preferred.
    pub fn choose(
        &self,
        agent: AgentId,
        service: &ServiceName,
        class: Class,
        tried: &[TunnelId],
        near: Option<Core>,
    ) -> Choice<T> {
        let table = self.table.lock();
        let Some(entries) = table.tunnels.get(&agent) else {
            return Choice::NoTunnel;
        };
        let in_flight = entries.iter().map(|entry| entry.load(near));
        let in_flight =
            in_flight.fold(0u32, |sum, load| sum.saturating_add(load.short).saturating_add(load.long));
        if in_flight >= self.limit {
            return Choice::Busy;
        }

        let candidates = entries.iter().map(|entry| {
            let candidate = entry.position(service).is_some() && !tried.contains(&entry.id);
            candidate.then(|| entry.load(near))
        });
        let chosen = least_loaded(candidates, self.turn.fetch_add(1, Relaxed)).map(|index| &entries[index]);
        let Some((entry, service)) = chosen.and_then(|entry| Some((entry, entry.position(service)?))) else {
            let served = entries.iter().any(|entry| entry.position(service).is_some());
            return if served { Choice::NoTunnel } else { Choice::NotServed(services(entries)) };
        };

        entry.services[service].counter(class).fetch_add(1, Relaxed);
        Choice::Tunnel(Lease { entry: Arc::clone(entry), service, class })
    }

    /// Completes when a tunnel of the agent is registered after this call.
    pub fn arrival(&self, agent: AgentId) -> impl Future<Output = ()> + Send + use<T> {
        let mut table = self.table.lock();
        let waiting = table.waiting.entry(agent).or_default();
        Arc::clone(waiting).notified_owned()
    }

    /// Whether the agent has any tunnel here.
    pub fn holds(&self, agent: AgentId) -> bool {
        self.table.lock().tunnels.contains_key(&agent)
    }

    /// The agent's tunnels, in no order, to look at.
    pub fn views_of(&self, agent: AgentId) -> Vec<View<T>> {
        let table = self.table.lock();
        let entries = table.tunnels.get(&agent).into_iter().flatten();
        entries.map(|entry| View { agent, entry: Arc::clone(entry) }).collect()
    }

    /// Every tunnel, in no order, to look at. Requests wait for no more than the time it takes to list them.
    pub fn views(&self) -> Vec<View<T>> {
        let table = self.table.lock();
        let all = table.tunnels.iter().flat_map(|(agent, entries)| entries.iter().map(move |e| (agent, e)));
        all.map(|(agent, entry)| View { agent: *agent, entry: Arc::clone(entry) }).collect()
    }
}

impl<T> Registration<T> {
    /// The tunnel is about to be left: requests go to others if there are any.
    pub fn drain(&self) {
        self.entry.draining.store(true, Relaxed);
    }
}

impl<T> Drop for Registration<T> {
    fn drop(&mut self) {
        let mut table = self.tunnels.table.lock();
        if let Some(entries) = table.tunnels.get_mut(&self.agent) {
            entries.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
            if entries.is_empty() {
                table.tunnels.remove(&self.agent);
            }
        }
    }
}

impl<T> Lease<T> {
    /// What to send the request with.
    pub fn handle(&self) -> &T {
        &self.entry.handle
    }

    /// Which tunnel it is.
    pub fn tunnel(&self) -> TunnelId {
        self.entry.id
    }
}

impl<T> Drop for Lease<T> {
    fn drop(&mut self) {
        self.entry.services[self.service].counter(self.class).fetch_sub(1, Relaxed);
    }
}

impl<T> View<T> {
    /// What requests are sent with.
    pub fn handle(&self) -> &T {
        &self.entry.handle
    }

    /// Which tunnel it is.
    pub fn tunnel(&self) -> TunnelId {
        self.entry.id
    }

    /// Whether it is about to be left.
    pub fn is_draining(&self) -> bool {
        self.entry.draining.load(Relaxed)
    }

    /// What it serves, and how much of it now.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceName, InFlight)> {
        self.entry.services.iter().map(|served| (&served.name, served.in_flight()))
    }
}

impl<T> Entry<T> {
    fn position(&self, service: &ServiceName) -> Option<usize> {
        self.services.iter().position(|served| served.name == *service)
    }

    fn load(&self, near: Option<Core>) -> Load {
        let far = near.is_some_and(|near| self.core.is_some_and(|core| core != near));
        let mut load = Load { short: 0, long: 0, draining: self.draining.load(Relaxed), far };
        for InFlight { short, long } in self.services.iter().map(Served::in_flight) {
            load.short = load.short.saturating_add(short);
            load.long = load.long.saturating_add(long);
        }
        load
    }
}

impl Served {
    fn new(name: ServiceName) -> Self {
        Self { name, short: AtomicU32::new(0), long: AtomicU32::new(0) }
    }

    fn in_flight(&self) -> InFlight {
        InFlight { short: self.short.load(Relaxed), long: self.long.load(Relaxed) }
    }

    fn counter(&self, class: Class) -> &AtomicU32 {
        match class {
            Class::Short => &self.short,
            Class::Long => &self.long,
        }
    }
}

fn services<T>(entries: &[Arc<Entry<T>>]) -> Vec<ServiceName> {
    let served = entries.iter().flat_map(|entry| &entry.services);
    let mut services: Vec<_> = served.map(|served| served.name.clone()).collect();
    services.sort();
    services.dedup();
    services
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: AgentId = AgentId(7);

    fn service(name: &str) -> ServiceName {
        name.parse().unwrap()
    }

    fn table() -> Arc<LocalTunnels<u8>> {
        Arc::new(LocalTunnels::new(3))
    }

    fn register(tunnels: &Arc<LocalTunnels<u8>>, handle: u8) -> Registration<u8> {
        tunnels.register(AGENT, TunnelId::random(), vec![service("kubernetes")], handle, None)
    }

    fn choose(tunnels: &LocalTunnels<u8>, tried: &[TunnelId]) -> Option<Lease<u8>> {
        match tunnels.choose(AGENT, &service("kubernetes"), Class::Short, tried, None) {
            Choice::Tunnel(lease) => Some(lease),
            Choice::NotServed(_) | Choice::NoTunnel | Choice::Busy => None,
        }
    }

    #[test]
    fn a_tunnel_is_there_exactly_as_long_as_its_registration() {
        let tunnels = table();
        assert!(choose(&tunnels, &[]).is_none());
        let registration = register(&tunnels, 1);
        assert_eq!(*choose(&tunnels, &[]).unwrap().handle(), 1);
        drop(registration);
        assert!(choose(&tunnels, &[]).is_none());
        assert!(!tunnels.holds(AGENT));
    }

    #[test]
    fn requests_spread_over_tunnels_by_what_is_in_flight() {
        let tunnels = table();
        let _registrations = [register(&tunnels, 1), register(&tunnels, 2)];
        let first = choose(&tunnels, &[]).unwrap();
        let second = choose(&tunnels, &[]).unwrap();
        assert_ne!(first.handle(), second.handle());
        let free = *first.handle();
        drop(first);
        assert_eq!(*choose(&tunnels, &[]).unwrap().handle(), free);
    }

    #[test]
    fn a_tried_tunnel_and_a_draining_one_are_passed_over() {
        let tunnels = table();
        let (a, _b) = (register(&tunnels, 1), register(&tunnels, 2));
        a.drain();
        let lease = choose(&tunnels, &[]).unwrap();
        assert_eq!(*lease.handle(), 2);
        let second = choose(&tunnels, &[lease.tunnel()]).unwrap();
        assert_eq!(*second.handle(), 1, "better than none");
        assert!(choose(&tunnels, &[lease.tunnel(), second.tunnel()]).is_none());
    }

    #[test]
    fn an_agent_that_serves_something_else_says_what() {
        let tunnels = table();
        let _registration = register(&tunnels, 1);
        match tunnels.choose(AGENT, &service("prometheus"), Class::Short, &[], None) {
            Choice::NotServed(served) => assert_eq!(served, [service("kubernetes")]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_looks_sees_every_tunnel_with_what_is_in_flight_for_each_service() {
        let tunnels = table();
        let both = vec![service("kubernetes"), service("prometheus")];
        let a = tunnels.register(AGENT, TunnelId::random(), both, 1, None);
        let _b = tunnels.register(AgentId(8), TunnelId::random(), vec![], 2, None);
        let Choice::Tunnel(_watch) = tunnels.choose(AGENT, &service("prometheus"), Class::Long, &[], None)
        else {
            panic!("there is a tunnel");
        };
        let _get = choose(&tunnels, &[]).unwrap();
        a.drain();

        let mut views = tunnels.views();
        views.sort_by_key(|view| view.agent);
        assert_eq!(views.iter().map(|view| *view.handle()).collect::<Vec<_>>(), [1, 2]);
        assert!(views[0].is_draining() && !views[1].is_draining());
        let seen: Vec<_> = views[0].services().map(|(name, now)| (name.as_str(), now)).collect();
        let (short, long) = (InFlight { short: 1, long: 0 }, InFlight { short: 0, long: 1 });
        assert_eq!(seen, [("kubernetes", short), ("prometheus", long)]);
        let of = |agent| tunnels.views_of(agent).iter().map(|view| *view.handle()).collect::<Vec<_>>();
        assert_eq!((of(AGENT), of(AgentId(8)), of(AgentId(9))), (vec![1], vec![2], vec![]));
    }

    #[test]
    fn an_agent_has_so_many_requests_in_flight_and_no_more() {
        let tunnels = table();
        let _registrations = [register(&tunnels, 1), register(&tunnels, 2)];
        let mut leases: Vec<_> = (0..3).map(|_| choose(&tunnels, &[]).unwrap()).collect();
        let busy = tunnels.choose(AGENT, &service("kubernetes"), Class::Long, &[], None);
        assert!(matches!(busy, Choice::Busy));
        leases.pop();
        assert!(choose(&tunnels, &[]).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_caller_is_woken_by_its_agent_only() {
        let tunnels = table();
        let arrival = tunnels.arrival(AGENT);
        let other = tunnels.arrival(AgentId(8));
        let _registration = register(&tunnels, 1);
        arrival.await;
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), other).await;
        assert!(waited.is_err());
    }
}
