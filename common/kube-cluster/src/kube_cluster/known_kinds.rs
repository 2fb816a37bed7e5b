//! The kinds that a cluster has.

use std::collections::{BTreeSet, HashSet};

use kube::{
    Client,
    core::discovery::{Scope, v2::APIGroupDiscovery},
    discovery::{self, Discovery},
};
use tokio::time::Instant;

use super::lost;
use crate::{ApiError, GroupKind, Kind, KindLookup};

/// The freshness of a version of an API group whose server does not respond (`apidiscovery.k8s.io/v2`).
const STALE: &str = "Stale";

/// The kinds of a cluster at a time.
#[derive(Debug)]
pub(super) struct KnownKinds {
    pub(super) kinds: Vec<KnownKind>,
    /// The API groups whose servers did not respond. Some of their kinds may be known.
    pub(super) unavailable: BTreeSet<String>,
    pub(super) since: Instant,
}

#[derive(Debug)]
pub(super) struct KnownKind {
    pub(super) kind: Kind,
    /// It is the version that the group prefers.
    pub(super) preferred: bool,
    pub(super) listable: bool,
}

/// Asks for all kinds: in two requests where the API server can do that (Kubernetes 1.26), and otherwise in one for each group. A
/// group whose server is down does not hinder the others.
pub(super) async fn discover(client: &Client) -> Result<KnownKinds, ApiError> {
    let error = |error: kube::Error| lost(format!("the discovery of the API server failed: {error}"));
    let mut known = KnownKinds { kinds: Vec::new(), unavailable: BTreeSet::new(), since: Instant::now() };
    if let Ok(core) = client.list_core_api_versions_aggregated().await {
        core.items.into_iter().for_each(|group| known.add_discovery(group));
        // An older API server answers with another list, in which nothing is found.
        if !known.kinds.is_empty() {
            let groups = client.list_api_groups_aggregated().await.map_err(error)?;
            groups.items.into_iter().for_each(|group| known.add_discovery(group));
            return Ok(known);
        }
    }
    let core = Discovery::new(client.clone())
        .filter(&[discovery::ApiGroup::CORE_GROUP])
        .run()
        .await
        .map_err(error)?;
    core.groups().for_each(|group| known.add_group(group));
    for group in client.list_api_groups().await.map_err(error)?.groups {
        match discovery::group(client, &group.name).await {
            Ok(group) => known.add_group(&group),
            Err(error) => {
                tracing::debug!(group = group.name, %error, "the kinds of an API group are not known");
                known.unavailable.insert(group.name);
            }
        }
    }
    Ok(known)
}

impl KnownKinds {
    pub(super) fn lookup(&self, kind: &GroupKind, version: Option<&str>) -> KindLookup {
        let mut found = self.kinds.iter().filter(|known| known.kind.kind == *kind);
        let found = match version {
            Some(version) => found.find(|known| known.kind.version == version),
            None => found.find(|known| known.preferred),
        };
        match found {
            Some(known) => KindLookup::Found(known.kind.clone()),
            None if self.unavailable.contains(&kind.group) => KindLookup::Unavailable,
            None => KindLookup::Missing,
        }
    }

    /// Adds a group of an aggregated discovery, whose first version is the preferred one.
    fn add_discovery(&mut self, group: APIGroupDiscovery) {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        let mut seen = HashSet::new();
        for version in group.versions {
            if version.freshness.as_deref() == Some(STALE) {
                self.unavailable.insert(name.clone());
            }
            for resource in version.resources {
                let kind = resource.response_kind.and_then(|kind| kind.kind).unwrap_or_default();
                let kind = GroupKind { group: name.clone(), kind };
                self.kinds.push(KnownKind {
                    preferred: seen.insert(kind.clone()),
                    listable: resource.verbs.iter().any(|verb| verb == "list"),
                    kind: Kind {
                        kind,
                        version: version.version.clone().unwrap_or_default(),
                        plural: resource.resource.unwrap_or_default(),
                        namespaced: resource.scope.as_deref() == Some("Namespaced"),
                        has_status: resource
                            .subresources
                            .iter()
                            .any(|it| it.subresource.as_deref() == Some("status")),
                    },
                });
            }
        }
    }

    fn add_group(&mut self, group: &discovery::ApiGroup) {
        let preferred = group.preferred_version_or_latest();
        let mut versions: Vec<&str> = group.versions().collect();
        // The kinds of the preferred version come first, so that a kind that only an older version has is found, too.
        versions.sort_by_key(|version| *version != preferred);
        let mut seen = HashSet::new();
        for version in versions {
            for (resource, capabilities) in group.versioned_resources(version) {
                let group_kind = GroupKind { group: resource.group, kind: resource.kind };
                self.kinds.push(KnownKind {
                    preferred: seen.insert(group_kind.clone()),
                    listable: capabilities.supports_operation("list"),
                    kind: Kind {
                        kind: group_kind,
                        version: resource.version,
                        plural: resource.plural,
                        namespaced: capabilities.scope == Scope::Namespaced,
                        has_status: capabilities.subresources.iter().any(|(it, _)| it.plural == "status"),
                    },
                });
            }
        }
    }
}
