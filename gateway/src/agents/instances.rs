//! The agentk processes of an agent that have tunnels to this replica, as they are published to other replicas.

use std::time::SystemTime;

use router::{Instance, ReportedInfo, TunnelView};

use crate::tunnel_entry::TunnelEntry;

/// Returns one instance per process, in order of their ids.
pub(super) fn instances(tunnels: &[TunnelView<TunnelEntry>]) -> Vec<Instance> {
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

fn instance(TunnelEntry { hello, since, .. }: &TunnelEntry) -> Instance {
    Instance {
        id: hello.instance,
        reported: ReportedInfo::from(&**hello),
        since: seconds(*since),
        tunnels: 1,
    }
}

/// Truncates a time to seconds, the precision of the route store.
fn seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(since.as_secs())
}
