//! `loadtest reflector`: what `loadtest graph` compares agentk with.

use std::pin::pin;

use anyhow::Context as _;
use futures_util::{StreamExt as _, future::join_all};
use http::Uri;
use kube::{
    Api, Client, Config,
    core::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{WatchStreamExt as _, reflector, watcher},
};

use crate::load;

/// The line before anything is loaded.
pub const STARTED: &str = "started";
/// The line once all objects are loaded.
pub const LOADED: &str = "loaded";

/// The kinds that [`testing::simulator::Simulator::fill`] adds.
const KINDS: [&str; 3] = ["Pod", "ConfigMap", "Service"];

/// Keep the objects of a cluster in memory with the reflector of kube-rs, until interrupted
#[derive(Clone, Debug, clap::Args)]
pub struct Reflector {
    /// URL of the API server, without TLS
    url: Uri,
}

impl Reflector {
    /// Prints [`STARTED`] and [`LOADED`]. The future never completes.
    ///
    /// # Errors
    ///
    /// The API server does not respond.
    pub async fn run(self) -> anyhow::Result<()> {
        let client = Client::try_from(Config::new(self.url)).context("the URL cannot be used")?;
        client.apiserver_version().await.context("the API server does not respond")?;
        load::print(&STARTED)?;
        let (stores, writers): (Vec<_>, Vec<_>) = KINDS
            .iter()
            .map(|kind| {
                let api = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
                let writer = reflector::store::Writer::<DynamicObject>::new(api.clone());
                (writer.as_reader(), (api, writer))
            })
            .unzip();
        let follow = writers.into_iter().map(async |(api, writer)| {
            let objects: Api<DynamicObject> = Api::all_with(client.clone(), &api);
            let stream = watcher(objects, watcher::Config::default().page_size(250)).default_backoff();
            let mut stream = pin!(reflector(writer, stream));
            while stream.next().await.is_some() {}
        });
        let loaded = async {
            for store in &stores {
                store.wait_until_ready().await.context("a watch has ended")?;
            }
            load::print(&LOADED)?;
            std::future::pending::<anyhow::Result<()>>().await
        };
        tokio::select! {
            loaded = loaded => loaded,
            _ = join_all(follow) => Ok(()),
        }
    }
}
