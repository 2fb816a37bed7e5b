//! The checks of `kas check-config --live`, which run beside the running replicas.

use std::sync::Arc;

use cores::Cores;
use kas_listen::listener::Listener;
use prometheus_client::registry::Registry;
use proto::ReplicaId;
use router::LocalTunnels;
use store::{
    MemoryStore, Replica,
    redis::{RedisCheck, RedisStore},
};

use super::ValidatedConfig;
use crate::config::Config;
use kas_core::{
    metrics::Metrics,
    peers::{self, PeerClient, PeerConfig, PeerServer, ReplicaContext},
    request_types::RequestTypes,
};

/// The result of one check.
#[derive(Debug)]
pub struct CheckResult {
    /// The subject of the check.
    pub subject: String,
    /// One line about the result.
    pub result: Result<String, String>,
}

impl ValidatedConfig {
    /// Checks Redis, the address of this replica, and every live replica. This replica does not join them.
    pub async fn run_live_checks(self) -> Vec<CheckResult> {
        let (mut results, mut replicas) = (Vec::new(), Vec::new());
        if let Some(settings) = self.redis {
            let nowhere = Replica { id: ReplicaId::random(), url: String::new() };
            let (store, _keeper) = RedisStore::new(settings, nowhere, env!("CARGO_PKG_VERSION"));
            let report = store.check().await;
            replicas = report.replicas;
            let convert = |RedisCheck { name, result }| CheckResult {
                subject: name.to_owned(),
                result: result.map_err(|error| error.to_string()),
            };
            results.extend(report.checks.into_iter().map(convert));
        }
        if let Some(setup) = self.private {
            results.extend(check_peers(setup, &self.config, replicas).await);
        }
        if results.is_empty() {
            let result =
                Ok("the configuration has neither redis nor private_api: there is one replica".to_owned());
            results.push(CheckResult { subject: "replicas".to_owned(), result });
        }
        results
    }
}

async fn check_peers(setup: PeerConfig, config: &Config, replicas: Vec<Replica>) -> Vec<CheckResult> {
    let bound = setup.bind(peers::MAX_CONNECTIONS).await;
    let address = bound.as_ref().map_or(setup.listen.address, Listener::address);
    let own = Replica { id: ReplicaId::random(), url: setup.url(address).to_string() };
    let settings = config.peer_settings();
    let alone = ReplicaContext::standalone(own.id, Arc::new(MemoryStore::default()), settings.clone());
    let fleet = setup.apply_to(alone, settings.clone());
    let metrics = Metrics::register(&mut Registry::default(), &RequestTypes::with(Vec::new()));
    let peers = PeerClient::new(own.id, fleet.connector, fleet.secret.clone(), metrics.peers.clone());

    let here = match bound {
        Ok(listener) => {
            let tunnels = Arc::new(LocalTunnels::new(0));
            let server = PeerServer::new(
                own.clone(),
                fleet.secret,
                tunnels,
                peers.clone(),
                fleet.store,
                settings,
                metrics,
            );
            let server = Arc::new(server);
            let listening = tokio::spawn(server.listen(listener, Cores::default()));
            let greeted = peers.ping(&own).await.map_err(|error| error.to_string());
            listening.abort();
            greeted.map(|()| "the private listener is reachable".to_owned())
        }
        Err(_) if replicas.iter().any(|replica| replica.url == own.url) => {
            Ok("a replica runs there, see below".to_owned())
        }
        Err(error) => Err(format!("{error}; no live replica has this address")),
    };
    let mut results = vec![CheckResult { subject: format!("own address {}", own.url), result: here }];
    for replica in replicas {
        let result = match peers.ping(&replica).await {
            Ok(()) => Ok("reachable, and trusts this replica".to_owned()),
            Err(trouble) => Err(trouble.to_string()),
        };
        results.push(CheckResult { subject: format!("replica {} at {}", replica.id, replica.url), result });
    }
    results
}
