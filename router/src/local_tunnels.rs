//! [`LocalTunnels`]: the tunnels to this replica, and the choice between them.

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
use store::Waiters;

/// The cost of a long stream in short ones, so that interactive requests take a tunnel without bulk.
const LONG_COST: u32 = 4;

/// A tunnel on another core costs 2×load + SLACK: each wake-up of another core costs both cores some microseconds, but
/// bulk in the same tunnel costs more.
const SLACK: u32 = 8;

/// The load that a request puts on its tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestClass {
    /// A request that ends with its response; its caller waits for it.
    Short,
    /// A watch, `logs -f`, exec or port-forward: a stream that stays open and may be bulk.
    Streaming,
}

/// The table of the tunnels to this replica by agent. `T` is the handle to send requests with.
#[derive(Debug)]
pub struct LocalTunnels<T> {
    tunnels: Mutex<HashMap<AgentId, Vec<Arc<RegisteredTunnel<T>>>>>,
    waiters: Waiters,
    /// The number of choices so far, by which equal tunnels take turns.
    choices: AtomicUsize,
    /// The highest number of requests in flight to one agent.
    limit: u32,
}

#[derive(Debug)]
struct RegisteredTunnel<T> {
    id: TunnelId,
    services: Vec<ServiceLoad>,
    handle: T,
    /// The core that runs the tunnel, if it is known.
    core: Option<Core>,
    draining: AtomicBool,
}

/// A service of a tunnel with its requests in flight. The load of a tunnel is the sum of its services.
#[derive(Debug)]
struct ServiceLoad {
    name: ServiceName,
    short: AtomicU32,
    long: AtomicU32,
}

/// The present load of a tunnel, by which it is compared with the others of its agent.
#[derive(Clone, Copy, Debug)]
struct TunnelLoad {
    short: u32,
    long: u32,
    /// The tunnel drains: it is chosen only if no other tunnel can be.
    draining: bool,
    /// The tunnel runs on another core than the request.
    on_other_core: bool,
}

/// The result of [`LocalTunnels::choose`].
#[derive(Debug)]
pub enum TunnelChoice<T> {
    /// The chosen tunnel.
    Tunnel(RequestPermit<T>),
    /// The agent has tunnels to this replica, but serves only these services.
    NotServed(Vec<ServiceName>),
    /// The agent has no tunnel to this replica that was not tried.
    NoTunnel,
    /// The agent has reached the limit of requests in flight.
    LimitReached,
}

/// A chosen tunnel. It counts one request in flight until it is dropped.
#[derive(Debug)]
pub struct RequestPermit<T> {
    entry: Arc<RegisteredTunnel<T>>,
    /// The index of the service in the entry.
    service: usize,
    class: RequestClass,
}

/// A tunnel for inspection. It may have left the table since.
#[derive(Debug)]
pub struct TunnelView<T> {
    /// The agent of the tunnel.
    pub agent: AgentId,
    entry: Arc<RegisteredTunnel<T>>,
}

/// The requests for one service in one tunnel whose responses have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestsInFlight {
    /// The number of requests of [`RequestClass::Short`].
    pub short: u32,
    /// The number of requests of [`RequestClass::Streaming`].
    pub long: u32,
}

/// The entry of a tunnel in the table. Dropping it removes the tunnel.
#[derive(Debug)]
#[must_use = "dropping it removes the tunnel from the table"]
pub struct RegistrationGuard<T> {
    table: Arc<LocalTunnels<T>>,
    agent: AgentId,
    entry: Arc<RegisteredTunnel<T>>,
}

impl<T> LocalTunnels<T> {
    /// Creates an empty table. `limit` is the highest number of requests in flight to one agent.
    pub fn new(limit: u32) -> Self {
        Self { tunnels: Mutex::default(), waiters: Waiters::default(), choices: AtomicUsize::new(0), limit }
    }

    /// Adds a tunnel, which `core` runs, and wakes the callers that wait for its agent.
    pub fn register(
        self: &Arc<Self>,
        agent: AgentId,
        id: TunnelId,
        services: Vec<ServiceName>,
        handle: T,
        core: Option<Core>,
    ) -> RegistrationGuard<T> {
        let services = services.into_iter().map(ServiceLoad::new).collect();
        let entry =
            Arc::new(RegisteredTunnel { id, services, handle, core, draining: AtomicBool::new(false) });
        self.tunnels.lock().entry(agent).or_default().push(Arc::clone(&entry));
        self.waiters.wake(agent);
        RegistrationGuard { table: Arc::clone(self), agent, entry }
    }

    /// Chooses the least loaded tunnel of the agent that serves `service` and is not in `tried`. Tunnels of the core
    /// `near` are preferred.
    pub fn choose(
        &self,
        agent: AgentId,
        service: &ServiceName,
        class: RequestClass,
        tried: &[TunnelId],
        near: Option<Core>,
    ) -> TunnelChoice<T> {
        let tunnels = self.tunnels.lock();
        let Some(entries) = tunnels.get(&agent) else {
            return TunnelChoice::NoTunnel;
        };
        let mut in_flight = 0u32;
        let candidates = entries.iter().map(|entry| {
            let load = entry.load(near);
            in_flight = in_flight.saturating_add(load.short).saturating_add(load.long);
            let candidate = entry.position(service).is_some() && !tried.contains(&entry.id);
            candidate.then_some(load)
        });
        let chosen =
            least_loaded(candidates, self.choices.fetch_add(1, Relaxed)).map(|index| &entries[index]);
        if in_flight >= self.limit {
            return TunnelChoice::LimitReached;
        }
        let Some((entry, service)) = chosen.and_then(|entry| Some((entry, entry.position(service)?))) else {
            let served = entries.iter().any(|entry| entry.position(service).is_some());
            return if served { TunnelChoice::NoTunnel } else { TunnelChoice::NotServed(services(entries)) };
        };

        entry.services[service].counter(class).fetch_add(1, Relaxed);
        TunnelChoice::Tunnel(RequestPermit { entry: Arc::clone(entry), service, class })
    }

    /// Completes when a tunnel of the agent is registered after this call.
    pub fn registered(&self, agent: AgentId) -> impl Future<Output = ()> + Send + use<T> {
        self.waiters.wait(agent)
    }

    /// Returns whether the agent has a tunnel to this replica.
    pub fn contains(&self, agent: AgentId) -> bool {
        self.tunnels.lock().contains_key(&agent)
    }

    /// Returns the tunnels of the agent for inspection, in no order.
    pub fn views_of(&self, agent: AgentId) -> Vec<TunnelView<T>> {
        let tunnels = self.tunnels.lock();
        let entries = tunnels.get(&agent).into_iter().flatten();
        entries.map(|entry| TunnelView { agent, entry: Arc::clone(entry) }).collect()
    }

    /// Returns all tunnels for inspection, in no order. Requests wait only while the list is copied.
    pub fn views(&self) -> Vec<TunnelView<T>> {
        let tunnels = self.tunnels.lock();
        let all = tunnels.iter().flat_map(|(agent, entries)| entries.iter().map(move |e| (agent, e)));
        all.map(|(agent, entry)| TunnelView { agent: *agent, entry: Arc::clone(entry) }).collect()
    }
}

impl<T> RegistrationGuard<T> {
    /// Marks the tunnel as draining: requests take other tunnels if the agent has any.
    pub fn drain(&self) {
        self.entry.draining.store(true, Relaxed);
    }
}

impl<T> Drop for RegistrationGuard<T> {
    fn drop(&mut self) {
        let mut tunnels = self.table.tunnels.lock();
        if let Some(entries) = tunnels.get_mut(&self.agent) {
            entries.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
            if entries.is_empty() {
                tunnels.remove(&self.agent);
            }
        }
    }
}

impl<T> RequestPermit<T> {
    /// Returns the handle to send the request with.
    pub fn handle(&self) -> &T {
        &self.entry.handle
    }

    /// Returns the id of the tunnel.
    pub fn tunnel(&self) -> TunnelId {
        self.entry.id
    }
}

impl<T> Drop for RequestPermit<T> {
    fn drop(&mut self) {
        self.entry.services[self.service].counter(self.class).fetch_sub(1, Relaxed);
    }
}

impl<T> TunnelView<T> {
    /// Returns the handle that requests are sent with.
    pub fn handle(&self) -> &T {
        &self.entry.handle
    }

    /// Returns the id of the tunnel.
    pub fn tunnel(&self) -> TunnelId {
        self.entry.id
    }

    /// Returns whether the tunnel drains.
    pub fn is_draining(&self) -> bool {
        self.entry.draining.load(Relaxed)
    }

    /// Returns the services of the tunnel with their requests in flight.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceName, RequestsInFlight)> {
        self.entry.services.iter().map(|served| (&served.name, served.in_flight()))
    }
}

impl<T> RegisteredTunnel<T> {
    fn position(&self, service: &ServiceName) -> Option<usize> {
        self.services.iter().position(|served| served.name == *service)
    }

    fn load(&self, near: Option<Core>) -> TunnelLoad {
        let on_other_core = near.is_some_and(|near| self.core.is_some_and(|core| core != near));
        let mut load = TunnelLoad { short: 0, long: 0, draining: self.draining.load(Relaxed), on_other_core };
        for RequestsInFlight { short, long } in self.services.iter().map(ServiceLoad::in_flight) {
            load.short = load.short.saturating_add(short);
            load.long = load.long.saturating_add(long);
        }
        load
    }
}

impl ServiceLoad {
    fn new(name: ServiceName) -> Self {
        Self { name, short: AtomicU32::new(0), long: AtomicU32::new(0) }
    }

    fn in_flight(&self) -> RequestsInFlight {
        RequestsInFlight { short: self.short.load(Relaxed), long: self.long.load(Relaxed) }
    }

    fn counter(&self, class: RequestClass) -> &AtomicU32 {
        match class {
            RequestClass::Short => &self.short,
            RequestClass::Streaming => &self.long,
        }
    }
}

impl TunnelLoad {
    fn cost(self) -> u32 {
        let load = self.long.saturating_mul(LONG_COST).saturating_add(self.short);
        if self.on_other_core { load.saturating_mul(2).saturating_add(SLACK) } else { load }
    }
}

/// Returns the index of the least loaded candidate. `None` in `candidates` is a tunnel that cannot be chosen.
///
/// Among equals the first from `start` on is chosen; a `start` that grows with each request makes equals take turns.
fn least_loaded(
    candidates: impl ExactSizeIterator<Item = Option<TunnelLoad>>,
    start: usize,
) -> Option<usize> {
    let count = candidates.len();
    let loads = candidates.enumerate().filter_map(|(index, load)| Some((index, load?)));
    let least = loads
        .min_by_key(|(index, load)| (load.draining, load.cost(), (index + count - start % count) % count));
    least.map(|(index, _)| index)
}

fn services<T>(entries: &[Arc<RegisteredTunnel<T>>]) -> Vec<ServiceName> {
    let served = entries.iter().flat_map(|entry| &entry.services);
    let mut services: Vec<_> = served.map(|served| served.name.clone()).collect();
    services.sort();
    services.dedup();
    services
}

#[cfg(test)]
mod tests;
