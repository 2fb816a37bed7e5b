//! The tunnels that end on this replica.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use proto::{AgentId, ServiceName, TunnelId};
use tokio::sync::Notify;

use crate::choice::{Class, Load, least_loaded};

/// Agent → its tunnels on this replica. `T` is the handle that a request is sent with.
#[derive(Debug)]
pub struct LocalTunnels<T> {
    table: Mutex<Table<T>>,
    turn: AtomicUsize,
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
    services: Vec<ServiceName>,
    handle: T,
    short: AtomicU32,
    long: AtomicU32,
    draining: AtomicBool,
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
}

/// A tunnel carrying one more request, until this is dropped.
#[derive(Debug)]
pub struct Lease<T> {
    entry: Arc<Entry<T>>,
    class: Class,
}

/// A tunnel's place in the table, until this is dropped.
#[derive(Debug)]
#[must_use = "dropping it removes the tunnel from the table"]
pub struct Registration<T> {
    tunnels: Arc<LocalTunnels<T>>,
    agent: AgentId,
    entry: Arc<Entry<T>>,
}

impl<T> Default for LocalTunnels<T> {
    fn default() -> Self {
        let table = Table { tunnels: HashMap::new(), waiting: HashMap::new() };
        Self { table: Mutex::new(table), turn: AtomicUsize::new(0) }
    }
}

impl<T> LocalTunnels<T> {
    /// Adds a tunnel and wakes whoever waits for its agent.
    pub fn register(
        self: &Arc<Self>,
        agent: AgentId,
        id: TunnelId,
        services: Vec<ServiceName>,
        handle: T,
    ) -> Registration<T> {
        let entry = Arc::new(Entry {
            id,
            services,
            handle,
            short: AtomicU32::new(0),
            long: AtomicU32::new(0),
            draining: AtomicBool::new(false),
        });
        let mut table = self.table.lock();
        table.tunnels.entry(agent).or_default().push(Arc::clone(&entry));
        let waiting = table.waiting.remove(&agent);
        drop(table);
        if let Some(waiting) = waiting {
            waiting.notify_waiters();
        }

        Registration { tunnels: Arc::clone(self), agent, entry }
    }

    /// The least loaded tunnel of the agent that serves this, leaving out those in `tried`.
    pub fn choose(
        &self,
        agent: AgentId,
        service: &ServiceName,
        class: Class,
        tried: &[TunnelId],
    ) -> Choice<T> {
        let table = self.table.lock();
        let Some(entries) = table.tunnels.get(&agent) else {
            return Choice::NoTunnel;
        };
        let serving: Vec<&Arc<Entry<T>>> =
            entries.iter().filter(|entry| entry.services.contains(service)).collect();
        if serving.is_empty() {
            return Choice::NotServed(services(entries));
        }

        let candidates: Vec<&Arc<Entry<T>>> =
            serving.into_iter().filter(|entry| !tried.contains(&entry.id)).collect();
        let loads: Vec<Load> = candidates.iter().map(|entry| entry.load()).collect();
        let Some(index) = least_loaded(&loads, self.turn.fetch_add(1, Relaxed)) else {
            return Choice::NoTunnel;
        };

        let entry = Arc::clone(candidates[index]);
        entry.counter(class).fetch_add(1, Relaxed);
        Choice::Tunnel(Lease { entry, class })
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
        self.entry.counter(self.class).fetch_sub(1, Relaxed);
    }
}

impl<T> Entry<T> {
    fn load(&self) -> Load {
        Load {
            short: self.short.load(Relaxed),
            long: self.long.load(Relaxed),
            draining: self.draining.load(Relaxed),
        }
    }

    fn counter(&self, class: Class) -> &AtomicU32 {
        match class {
            Class::Short => &self.short,
            Class::Long => &self.long,
        }
    }
}

fn services<T>(entries: &[Arc<Entry<T>>]) -> Vec<ServiceName> {
    let mut services: Vec<_> = entries.iter().flat_map(|entry| entry.services.iter().cloned()).collect();
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

    fn register(tunnels: &Arc<LocalTunnels<u8>>, handle: u8) -> Registration<u8> {
        tunnels.register(AGENT, TunnelId::random(), vec![service("kubernetes")], handle)
    }

    fn choose(tunnels: &LocalTunnels<u8>, tried: &[TunnelId]) -> Option<Lease<u8>> {
        match tunnels.choose(AGENT, &service("kubernetes"), Class::Short, tried) {
            Choice::Tunnel(lease) => Some(lease),
            Choice::NotServed(_) | Choice::NoTunnel => None,
        }
    }

    #[test]
    fn a_tunnel_is_there_exactly_as_long_as_its_registration() {
        let tunnels = Arc::default();
        assert!(choose(&tunnels, &[]).is_none());
        let registration = register(&tunnels, 1);
        assert_eq!(*choose(&tunnels, &[]).unwrap().handle(), 1);
        drop(registration);
        assert!(choose(&tunnels, &[]).is_none());
        assert!(!tunnels.holds(AGENT));
    }

    #[test]
    fn requests_spread_over_tunnels_by_what_is_in_flight() {
        let tunnels = Arc::default();
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
        let tunnels = Arc::default();
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
        let tunnels = Arc::default();
        let _registration = register(&tunnels, 1);
        match tunnels.choose(AGENT, &service("prometheus"), Class::Short, &[]) {
            Choice::NotServed(served) => assert_eq!(served, [service("kubernetes")]),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_caller_is_woken_by_its_agent_only() {
        let tunnels: Arc<LocalTunnels<u8>> = Arc::default();
        let arrival = tunnels.arrival(AGENT);
        let other = tunnels.arrival(AgentId(8));
        let _registration = register(&tunnels, 1);
        arrival.await;
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), other).await;
        assert!(waited.is_err());
    }
}
