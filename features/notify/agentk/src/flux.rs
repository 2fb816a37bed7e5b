//! Flux: sources reconcile at once when their repository changes.
//!
//! Without the URL of Flux' notification controller, agentk annotates the sources. With it, agentk keeps a `Receiver` and its Secret for each
//! `GitRepository`, under the names and with the ownership rules of GitLab's agent, and calls the path of the Receiver.

use std::{collections::BTreeSet, time::Duration};

use kube_cluster::{Cluster as _, Kind, KindLookup};
use proto::{gitops::ObjectId, notify::ProjectEvent};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    Notify,
    lane::{EffectError, combine},
    objects,
    plan::receiver_prefix,
    sources::RepositoryUrl,
};

const SOURCES: &str = "source.toolkit.fluxcd.io";
const NOTIFICATIONS: &str = "notification.toolkit.fluxcd.io";
/// The annotation at whose change a controller of Flux reconciles.
const REQUESTED: &str = "reconcile.fluxcd.io/requestedAt";
/// The annotation with the agent that an object belongs to. Objects of other agents are left alone.
const OWNER: &str = "agent.gitlab.com/id";
/// The time between two looks at the sources.
const PERIOD: Duration = Duration::from_secs(30);

/// Keeps the projects of the sources of Flux, and their Receivers, while this pod leads, until the Lease is given back.
pub(super) async fn follow_sources(notify: &Notify) {
    let (mut leadership, mut sections) = (notify.leader.subscribe(), notify.sections.subscribe());
    let mut failures = BTreeSet::new();
    loop {
        let leading = leadership.borrow_and_update().is_held();
        let section = sections.borrow_and_update().flux.clone();
        match section.filter(|_| leading) {
            Some(section) => {
                let _working = notify.leader.begin_work();
                let looked = look(notify, section.receiver().is_some()).await;
                for error in looked.difference(&failures) {
                    tracing::warn!(error, "a source of Flux is not followed");
                }
                failures = looked;
            }
            None => drop(notify.flux_projects.send_replace(BTreeSet::new())),
        }
        tokio::select! {
            () = sleep(PERIOD) => {}
            _ = leadership.changed() => {}
            _ = sections.changed() => {}
            () = notify.leader.stopping() => return,
        }
    }
}

/// Returns the failures. One of a source does not harm the others.
async fn look(notify: &Notify, with_receivers: bool) -> BTreeSet<String> {
    let found = match sources(notify).await {
        Ok(found) => found,
        Err(error) => return BTreeSet::from([error.to_string()]),
    };
    let projects: BTreeSet<String> = found.iter().map(|source| source.url.project.clone()).collect();
    let differs = notify.flux_projects.send_if_modified(|known| {
        let differs = *known != projects;
        *known = projects;
        differs
    });
    if differs {
        // An event that has arrived before may be about a new source.
        notify.generation.send_modify(|generation| *generation += 1);
    }
    let mut failures = BTreeSet::new();
    if with_receivers {
        for source in found.iter().filter(|source| source.kind.kind.kind == "GitRepository") {
            if let Err(error) = keep_receiver(notify, source).await {
                failures.insert(error.to_string());
            }
        }
    }
    failures
}

/// A source of Flux.
struct Source {
    kind: Kind,
    url: RepositoryUrl,
    object: Value,
}

async fn sources(notify: &Notify) -> Result<Vec<Source>, EffectError> {
    let mut found = Vec::new();
    let git = objects::kind(notify, SOURCES, "GitRepository", "Flux").await?;
    // Older versions of Flux have no artifacts.
    let wanted = kube_cluster::GroupKind { group: SOURCES.to_owned(), kind: "OCIRepository".to_owned() };
    let artifacts = match notify.cluster.resolve(&wanted, None).await? {
        KindLookup::Found(kind) => Some(kind),
        KindLookup::Missing | KindLookup::Unavailable => None,
    };
    for kind in [Some(git), artifacts].into_iter().flatten() {
        for object in notify.cluster.list(&kind, "", "", false).await? {
            if let Some(url) = object["spec"]["url"].as_str().and_then(RepositoryUrl::parse) {
                found.push(Source { kind: kind.clone(), url, object });
            }
        }
    }
    Ok(found)
}

/// Makes the sources of a repository reconcile.
pub(super) async fn reconcile(
    notify: &Notify,
    receiver_url: Option<&str>,
    event: &ProjectEvent,
) -> Result<(), EffectError> {
    let mut results = Vec::new();
    for source in sources(notify).await?.iter().filter(|source| source.url.matches(event)) {
        results.push(match receiver_url.filter(|_| source.kind.kind.kind == "GitRepository") {
            Some(url) => call_receiver(notify, url, source).await,
            None => objects::annotate(notify, &source.kind, &source.object, REQUESTED, event.id()).await,
        });
    }
    combine(results)
}

async fn call_receiver(notify: &Notify, url: &str, source: &Source) -> Result<(), EffectError> {
    keep_receiver(notify, source).await?;
    let kind = objects::kind(notify, NOTIFICATIONS, "Receiver", "Flux' notification controller").await?;
    let id = receiver_id(&kind, source);
    let receiver = notify.cluster.get(&kind, &id).await?.unwrap_or_default();
    // The controller has written it once it has seen the Receiver.
    let path = receiver["status"]["webhookPath"].as_str().unwrap_or_default();
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_".contains(&byte);
    if !path.starts_with("/hook/") || !path.bytes().all(valid) {
        return Err(EffectError::Failed(format!("the Receiver {}/{} is not ready", id.namespace, id.name)));
    }
    let prefix = receiver_prefix(url);
    if notify.policy.as_ref().and_then(|policy| policy.allowed_webhook(&prefix)).is_none() {
        return Err(EffectError::Refused(
            "the policy of the cluster's owner does not list the receiver".to_owned(),
        ));
    }
    notify.webhooks.call(&format!("{prefix}{}", path.trim_start_matches('/'))).await
}

/// Creates the Receiver of a source and its Secret, unless they exist. Kubernetes deletes them with the source.
async fn keep_receiver(notify: &Notify, source: &Source) -> Result<(), EffectError> {
    let Some(agent) = notify.leader.agent() else { return Ok(()) };
    let kind = objects::kind(notify, NOTIFICATIONS, "Receiver", "Flux' notification controller").await?;
    let id = receiver_id(&kind, source);
    if let Some(existing) = notify.cluster.get(&kind, &id).await? {
        return check_owner(&existing, &agent.to_string(), &id);
    }
    let secret_kind = Kind {
        kind: kube_cluster::GroupKind { group: String::new(), kind: "Secret".to_owned() },
        version: "v1".to_owned(),
        plural: "secrets".to_owned(),
        namespaced: true,
        has_status: false,
    };
    let name = source.object["metadata"]["name"].as_str().unwrap_or_default();
    let secret_id =
        ObjectId { name: format!("gitlab-receiver-{name}"), ..objects::id_of(&secret_kind, &source.object) };
    let metadata = json!({
        "annotations": {
            "app.kubernetes.io/managed-by": "gitlab",
            OWNER: agent.to_string(),
            "agent.gitlab.com/project": source.url.project,
        },
        "ownerReferences": [{
            "apiVersion": objects::api_version(&source.kind),
            "kind": source.kind.kind.kind,
            "name": name,
            "uid": source.object["metadata"]["uid"],
        }],
    });
    // The path of the Receiver follows from the token. GitLab's agent has an empty one, so that anybody can compute the path.
    let token = format!("{:032x}", rand::random::<u128>());
    objects::apply(
        notify,
        &secret_kind,
        &secret_id,
        json!({"metadata": metadata, "stringData": {"token": token}}),
    )
    .await?;
    let spec = json!({
        "type": "generic",
        "interval": "5m",
        "resources": [{"apiVersion": objects::api_version(&source.kind), "kind": "GitRepository", "name": name}],
        "secretRef": {"name": secret_id.name},
    });
    objects::create(notify, &kind, &id, json!({"metadata": metadata, "spec": spec})).await
}

/// Checks that an object belongs to this agent.
fn check_owner(object: &Value, agent: &str, id: &ObjectId) -> Result<(), EffectError> {
    match object["metadata"]["annotations"][OWNER].as_str() {
        Some(owner) if owner == agent => Ok(()),
        _ => Err(EffectError::Refused(format!(
            "the Receiver {}/{} belongs to another agent or to somebody else, and stays as it is",
            id.namespace, id.name
        ))),
    }
}

fn receiver_id(kind: &Kind, source: &Source) -> ObjectId {
    let id = objects::id_of(kind, &source.object);
    ObjectId { name: format!("gitlab-{}", id.name), ..id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receiver_of_another_agent_is_left_alone() {
        let id = ObjectId { name: "gitlab-shop".to_owned(), ..ObjectId::default() };
        let object = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        assert!(check_owner(&object(json!({OWNER: "7"})), "7", &id).is_ok());
        for annotations in [json!({OWNER: "8"}), json!({}), Value::Null, json!({OWNER: 7})] {
            let error = check_owner(&object(annotations), "7", &id).unwrap_err();
            assert!(matches!(error, EffectError::Refused(_)), "{error}");
        }
    }
}
