//! Which agentk processes of an agent have tunnels here: what other replicas learn of them.

use std::time::SystemTime;

use router::{Instance, View};

use crate::connected::Connected;

/// One for each process, in order of their ids.
pub(super) fn instances(tunnels: &[View<Connected>]) -> Vec<Instance> {
    let mut instances: Vec<Instance> = tunnels.iter().map(|view| instance(view.handle())).collect();
    instances.sort_by_key(|instance| instance.id);
    instances.dedup_by(|next, first| {
        let same = next.id == first.id;
        if same {
            first.tunnels = first.tunnels.saturating_add(1);
            first.since = first.since.min(next.since);
        }
        same
    });
    instances
}

fn instance(Connected { hello, since, .. }: &Connected) -> Instance {
    Instance {
        id: hello.instance,
        version: hello.version.clone(),
        pod_namespace: hello.pod_namespace.clone(),
        pod_name: hello.pod_name.clone(),
        kubernetes_version: hello.kubernetes_version.clone(),
        since: seconds(*since),
        tunnels: 1,
    }
}

/// To the second, as other replicas read it.
fn seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(since.as_secs())
}
