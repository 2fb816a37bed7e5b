//! The keys, and the page that explains them.

use std::time::Duration;

use proto::ReplicaId;

/// How often a replica says that it lives.
pub(super) const BEAT: Duration = Duration::from_secs(3);
/// After this a replica that said nothing is dead.
pub(super) const LIFE: Duration = Duration::from_secs(10);
/// A replica's records outlive it by this if nobody survives it to remove them.
pub(super) const ROUTES_LIFE: Duration = Duration::from_secs(3600);
/// With each so manieth beat the records' life is renewed, and their number compared.
pub(super) const BEATS_PER_AUDIT: u64 = 5;
/// How long it is known when an agent left.
pub(super) const GONE_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// What kas keeps in Redis: what `kas redis-schema` prints, and what docs/redis.md holds.
pub const SCHEMA: &str = "\
| key | type | what | life | written | size |
|---|---|---|---|---|---|
| `{kas}:replicas` | set | ids of the replicas, the dead among them until a survivor removes them | none | when a replica joins or leaves | 32 bytes a replica |
| `{kas}:replica:<id>` | string | heartbeat: `[1,{url,fleet,kas,started,tunnels}]`, as it was when the replica joined | 10 s | when a replica joins; its life every 3 s | 150 bytes a replica |
| `{kas}:routes:<id>` | hash | what the replica holds: agent id → `[1,epoch,[[instance,version,namespace,pod,kubernetes,since,tunnels],…]]`; field `generation` counts the replica's connections | 1 h | when an agent arrives or leaves; its life every 15 s | under 200 bytes an agent, overhead included |
| `{kas}:routes:<id>:next` | hash | the same while it is written anew, before it replaces the old one | 1 h | after each connection of a replica | |
| `{kas}:gone` | hash | agent id → when its last tunnel to some replica ended, in seconds since 1970 | 7 d | when an agent leaves a replica | 50 bytes an agent |
| `{kas}:check:<id>` | any | what `kas check-config --live` tries commands on | 10 s, removed at once | by that command | |
| `kas:limit:<digest>` | string | rate limit of an agent token: when it may connect again, in microseconds since 1970; the digest is a hash of the token's hash | as long as it limits, at most 1 min | when an agent connects | 100 bytes a token |
| `kas:events` | channel | events of replicas: `[1,id,generation,sequence,{beat or changed or left}]` | | every 3 s a replica; when an agent arrives or leaves | |
";

/// The keys of one fleet. What belongs together has one hash tag, so that a Cluster keeps it on one node.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    pub(super) fn replicas(&self) -> String {
        format!("{{{}}}:replicas", self.prefix)
    }

    /// What the key of each replica begins with.
    pub(super) fn heartbeats(&self) -> String {
        format!("{{{}}}:replica:", self.prefix)
    }

    pub(super) fn replica(&self, id: ReplicaId) -> String {
        format!("{}{id}", self.heartbeats())
    }

    pub(super) fn routes(&self, id: ReplicaId) -> String {
        format!("{{{}}}:routes:{id}", self.prefix)
    }

    pub(super) fn next_routes(&self, id: ReplicaId) -> String {
        format!("{{{}}}:routes:{id}:next", self.prefix)
    }

    pub(super) fn gone(&self) -> String {
        format!("{{{}}}:gone", self.prefix)
    }

    /// What is tried out with.
    pub(super) fn check(&self, id: ReplicaId) -> String {
        format!("{{{}}}:check:{id}", self.prefix)
    }

    pub(super) fn limit(&self, digest: &str) -> String {
        format!("{}:limit:{digest}", self.prefix)
    }

    pub(super) fn events(&self) -> String {
        format!("{}:events", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_key_and_every_life() {
        let (keys, id) = (Keys::new("kas"), ReplicaId::random());
        for key in [
            keys.replicas(),
            keys.replica(id),
            keys.routes(id),
            keys.next_routes(id),
            keys.gone(),
            keys.check(id),
            keys.limit("<digest>"),
            keys.events(),
        ] {
            let key = key.replace(&id.to_string(), "<id>");
            assert!(SCHEMA.contains(&format!("| `{key}` |")), "{key}");
        }
        for (of, life) in [("replica:<id>", LIFE), ("routes:<id>", ROUTES_LIFE), ("gone", GONE_LIFE)] {
            let row = SCHEMA.lines().find(|row| row.contains(&format!(":{of}`"))).unwrap();
            let life = match life.as_secs() {
                seconds @ 0..3600 => format!("| {seconds} s |"),
                seconds @ 3600..86_400 => format!("| {} h |", seconds / 3600),
                seconds => format!("| {} d |", seconds / 86_400),
            };
            assert!(row.contains(&life), "{row} {life}");
        }
        assert!(SCHEMA.contains(&format!("its life every {} s", BEAT.as_secs())));
        assert!(SCHEMA.contains(&format!("its life every {} s", BEAT.as_secs() * BEATS_PER_AUDIT)));
    }

    #[test]
    fn the_document_holds_the_page() {
        assert!(include_str!("../../../docs/redis.md").contains(SCHEMA));
    }
}
