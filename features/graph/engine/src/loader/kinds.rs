//! The kinds that are loaded. They follow those of the API server.

use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    time::Duration,
};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{AbortHandle, Aborted, BoxFuture, abortable},
    stream::FuturesUnordered,
};
use kube::{
    Client,
    core::{ApiResource, discovery::Scope},
    discovery::{self, Discovery},
};
use proto::agent_configuration::graph::GraphSection;
use tokio::time::{Interval, interval};

use super::{Loader, WasComplete};
use crate::{
    resources::{ResourceKind, is_left_out},
    time,
};

/// The time between two looks at objects that become healthy by themselves.
const RECOVERIES: Duration = Duration::from_secs(10);

/// The group and the kind.
type KindKey = (String, String);

/// The kinds that are loaded, and their loads.
pub(super) struct LoadedKinds<'a> {
    loader: &'a Loader<'a>,
    known: HashMap<KindKey, LoadedKind>,
    loads: FuturesUnordered<BoxFuture<'a, Result<(KindKey, WasComplete), Aborted>>>,
    /// The looks at objects that become healthy by themselves.
    recoveries: Interval,
}

struct LoadedKind {
    api: ApiResource,
    namespaced: bool,
    has_status: bool,
    /// The number of the resource in the graph.
    resource: usize,
    load: AbortHandle,
    /// The load has ended, because the API server does not know the kind in this version any more.
    has_ended: bool,
}

impl<'a> LoadedKinds<'a> {
    pub(super) fn new(loader: &'a Loader<'a>) -> Self {
        let (known, loads) = (HashMap::new(), FuturesUnordered::new());
        Self { loader, known, loads, recoveries: interval(RECOVERIES) }
    }

    /// Loads the kinds of the API server. A kind with another version is loaded anew, and keeps its objects meanwhile.
    pub(super) fn update(&mut self, kinds: Vec<ResourceKind>) {
        let mut before = std::mem::take(&mut self.known);
        for kind in kinds {
            let key = (kind.api.group.clone(), kind.api.kind.clone());
            let known = match before.remove(&key) {
                Some(known) if known.loads(&kind) => known,
                other => {
                    if let Some(other) = other {
                        other.load.abort();
                    }
                    self.start(&key, kind)
                }
            };
            self.known.insert(key, known);
        }
        for (key, kind) in before {
            if kind.has_ended {
                self.loader.cache.write(|graph| graph.withdraw(kind.resource));
            } else {
                // The server of its group may be down: then its objects are known, and may be outdated.
                self.known.insert(key, kind);
            }
        }
    }

    /// Polls the loads until a future is ready.
    pub(super) async fn drive<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                result = &mut future => return result,
                Some(ended) = self.loads.next() => self.on_end(ended),
                _ = self.recoveries.tick() => self.loader.cache.write(|graph| graph.recover(time::now())),
            }
        }
    }

    /// Notes the end of a load. A kind whose objects were known is looked for at once; another one may not be there for long.
    fn on_end(&mut self, ended: Result<(KindKey, WasComplete), Aborted>) {
        let Ok((key, was_complete)) = ended else { return };
        if let Some(kind) = self.known.get_mut(&key) {
            kind.has_ended = true;
        }
        if was_complete {
            self.loader.definitions.notify_one();
        }
    }

    fn start(&self, key: &KindKey, kind: ResourceKind) -> LoadedKind {
        let (api, namespaced, has_status) = (kind.api.clone(), kind.namespaced, kind.has_status);
        let (resource, load) = self.loader.load(kind);
        let (load, handle) = abortable(load);
        let key = key.clone();
        self.loads.push(load.map(|ended| Ok((key, ended?))).boxed());
        LoadedKind { api, namespaced, has_status, resource, load: handle, has_ended: false }
    }
}

impl LoadedKind {
    fn loads(&self, kind: &ResourceKind) -> bool {
        let is_same = self.api == kind.api && self.namespaced == kind.namespaced;
        !self.has_ended && is_same && self.has_status == kind.has_status
    }
}

/// The kinds of the API server.
#[derive(Default)]
pub(super) struct DiscoveredKinds {
    /// The kinds that are loaded, with their places within their tiers.
    loaded: Vec<(usize, ResourceKind)>,
    /// The kinds of other programs.
    left_out: Vec<ApiResource>,
}

/// Returns the kinds that are loaded, in their order, and those of programs that are not.
pub(super) async fn discover(
    client: &Client,
    section: &GraphSection,
) -> Result<(Vec<ResourceKind>, Vec<ApiResource>), kube::Error> {
    let mut kinds = DiscoveredKinds::default();
    if let Ok(found) = Discovery::new(client.clone()).run_aggregated().await {
        found.groups().for_each(|group| kinds.add_group(group, section));
    }
    // API servers before Kubernetes 1.26 answer with another list, in which kube-rs finds nothing.
    if kinds.loaded.is_empty() {
        let core = Discovery::new(client.clone()).filter(&[discovery::ApiGroup::CORE_GROUP]).run().await?;
        core.groups().for_each(|group| kinds.add_group(group, section));
        for group in client.list_api_groups().await?.groups {
            // A group whose server is down is found later.
            if let Ok(group) = discovery::group(client, &group.name).await {
                kinds.add_group(&group, section);
            }
        }
    }
    let DiscoveredKinds { mut loaded, mut left_out } = kinds;
    loaded.sort_by_key(|(place, kind)| (kind.tier, *place));
    // kube-rs finds groups in another order each time, and another list would be a change for each viewer.
    left_out.sort_by(|a, b| (&a.group, &a.kind).cmp(&(&b.group, &b.kind)));
    Ok((loaded.into_iter().map(|(_, kind)| kind).collect(), left_out))
}

impl DiscoveredKinds {
    fn add_group(&mut self, group: &discovery::ApiGroup, section: &GraphSection) {
        let preferred = group.preferred_version_or_latest();
        let mut versions: Vec<&str> = group.versions().collect();
        versions.sort_by_key(|version| *version != preferred);
        let mut seen = HashSet::new();
        for version in versions {
            for (api, capabilities) in group.versioned_resources(version) {
                let listed =
                    capabilities.supports_operation("list") && capabilities.supports_operation("watch");
                if !listed || seen.contains(&api.kind) {
                    continue;
                }
                let namespaced = capabilities.scope == Scope::Namespaced;
                let has_status = capabilities.subresources.iter().any(|(it, _)| it.plural == "status");
                seen.insert(api.kind.clone());
                match ResourceKind::new(api.clone(), namespaced, section) {
                    Some((kind, place)) => self.loaded.push((place, ResourceKind { has_status, ..kind })),
                    None if is_left_out(&api.group, &api.kind, has_status) => self.left_out.push(api),
                    None => {}
                }
            }
        }
    }
}
