//! `kas check-config --live`: what a configuration promises, tried out beside the replicas that run.

use std::sync::Arc;

use cores::Cores;
use prometheus_client::registry::Registry;
use proto::ReplicaId;
use router::{
    LocalTunnels, MemoryStore, Replica,
    redis::{Finding, RedisStore},
};

use super::Checked;
use crate::{
    config::Config,
    listen::Listener,
    metrics::Metrics,
    peers::{Fleet, Peers, host::Host, setup::Setup},
};

/// One thing that was tried out.
#[derive(Debug)]
pub struct Tried {
    /// What.
    pub what: String,
    /// How it went, in a line.
    pub result: Result<String, String>,
}

impl Checked {
    /// Tries Redis, this replica's own address, and every replica that lives. Joins nobody.
    pub async fn try_out(self) -> Vec<Tried> {
        let (mut tried, mut replicas) = (Vec::new(), Vec::new());
        if let Some(settings) = self.redis {
            let nowhere = Replica { id: ReplicaId::random(), url: String::new() };
            let (store, _keeper) = RedisStore::new(settings, nowhere, env!("CARGO_PKG_VERSION"));
            let examination = store.examine().await;
            replicas = examination.replicas;
            let tell = |Finding { what, result }| Tried { what: what.to_owned(), result };
            tried.extend(examination.findings.into_iter().map(tell));
        }
        if let Some(setup) = self.private {
            tried.extend(try_peers(setup, &self.config, replicas).await);
        }
        if tried.is_empty() {
            let result = Ok("the configuration has neither redis nor private_api: there is one".to_owned());
            tried.push(Tried { what: "replicas".to_owned(), result });
        }
        tried
    }
}

async fn try_peers(setup: Setup, config: &Config, replicas: Vec<Replica>) -> Vec<Tried> {
    let bound = setup.bind().await;
    let address = bound.as_ref().map_or(setup.listen.address, Listener::address);
    let own = Replica { id: ReplicaId::random(), url: setup.url(address).to_string() };
    let fleet = setup.fleet(Fleet::alone(own.id, Arc::new(MemoryStore::default()), config), config);
    let metrics = Metrics::register(&mut Registry::default());
    let peers = Peers::new(own.id, fleet.dial, fleet.secret.clone(), metrics.peers.clone());

    let here = match bound {
        Ok(listener) => {
            let tunnels = Arc::new(LocalTunnels::new(0));
            let back = (peers.clone(), fleet.store);
            let host = Arc::new(Host::new(own.id, fleet.secret, tunnels, back, config, metrics));
            let listening = tokio::spawn(host.listen(listener, Cores::default()));
            let greeted = peers.greet(&own).await.map_err(|trouble| trouble.to_string());
            listening.abort();
            greeted.map(|()| "it leads to the private listener".to_owned())
        }
        Err(_) if replicas.iter().any(|replica| replica.url == own.url) => {
            Ok("a replica runs there: see below".to_owned())
        }
        Err(error) => Err(format!("{error}; and no replica that lives has this address")),
    };
    let mut tried = vec![Tried { what: format!("own address {}", own.url), result: here }];
    for replica in replicas {
        let result = match peers.greet(&replica).await {
            Ok(()) => Ok("it is reached from here, and trusts this replica".to_owned()),
            Err(trouble) => Err(trouble.to_string()),
        };
        tried.push(Tried { what: format!("replica {} at {}", replica.id, replica.url), result });
    }
    tried
}
