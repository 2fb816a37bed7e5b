//! The accept loops of a replica.

use std::sync::Arc;

use cores::{Cores, TaskGroup};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::{App, Listeners, shutdown::Shutdown};
use kas_core::hosts::TlsName;

impl App {
    /// Spawns an accept loop for each listener, as a task of the background.
    ///
    /// Connections of agents, callers and replicas run on the `cores`, those of probes on the runtime `probes`, and those of API
    /// clients on the current runtime.
    pub(super) fn spawn_accept_loops(
        &self,
        listeners: Listeners,
        cores: &Cores,
        probes: &Handle,
        shutdown: &Shutdown,
    ) {
        let background = &shutdown.background;
        let metrics = self.callers.observers.metrics.listeners.clone();
        let (agents, callers) = (Arc::clone(&self.agents), Arc::clone(&self.callers));
        let liveness = &self.admin.liveness;
        let serving = listeners.agent.serve(
            shutdown.agents.clone(),
            cores.clone(),
            metrics.clone(),
            move |io, peer| {
                let agents = Arc::clone(&agents);
                async move {
                    let stranger = Arc::clone(io.stranger());
                    agents.serve(io, peer, stranger).await
                }
            },
        );
        background.spawn(liveness.heartbeat("accept-agent").during(serving));
        let serving = listeners.public.serve(
            shutdown.callers.clone(),
            cores.clone(),
            metrics.clone(),
            move |io, peer| {
                let callers = Arc::clone(&callers);
                async move {
                    // A proxy that ends TLS chooses the name of its own handshake with kas.
                    let tls_name = match io.tls_name() {
                        Some(_) if callers.config.addresses.trusts(peer.ip()) => TlsName::Irrelevant,
                        Some(name) => TlsName::Sent(name.map(Box::from)),
                        None => TlsName::Irrelevant,
                    };
                    let stranger = Arc::clone(io.stranger());
                    callers.serve(io, peer, tls_name, stranger).await
                }
            },
        );
        background.spawn(liveness.heartbeat("accept-public").during(serving));
        if let Some((listener, web)) = listeners.web.zip(self.web.clone()) {
            let serving =
                listener.serve(shutdown.callers.clone(), cores.clone(), metrics.clone(), move |io, peer| {
                    let web = Arc::clone(&web);
                    async move {
                        let stranger = Arc::clone(io.stranger());
                        web.serve(io, peer, stranger).await
                    }
                });
            background.spawn(liveness.heartbeat("accept-web").during(serving));
        }
        if let Some(private) = listeners.private {
            let serving = Arc::clone(&self.peer_server).listen(private, cores.clone());
            background.spawn(liveness.heartbeat("accept-private").during(serving));
        }
        // The shutdown does not wait for connections of probes and API clients.
        let unawaited = || TaskGroup { tasks: TaskTracker::new(), ..background.clone() };
        if let Some((listener, api)) = listeners.api.zip(self.api.clone()) {
            let server = api.server();
            let serving = listener.serve(unawaited(), Cores::default(), metrics.clone(), move |io, peer| {
                let stranger = Arc::clone(io.stranger());
                server.clone().serve(io, peer, stranger)
            });
            background.spawn(liveness.heartbeat("accept-api").during(serving));
        }
        let server = Arc::clone(&self.admin).server();
        let serving =
            listeners.observability.serve(unawaited(), Cores::default(), metrics.clone(), move |io, peer| {
                // No request has a credential there: all clients stay strangers.
                let stranger = Arc::clone(io.stranger());
                server.clone().serve(io, peer, stranger)
            });
        background.spawn_in(probes, serving);
    }
}
