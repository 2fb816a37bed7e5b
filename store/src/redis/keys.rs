//! The keys in Redis with their TTLs, [`SCHEMA`], which documents them, and the Lua scripts that use them. Each script begins
//! with its job, its arguments and its result.

use std::time::Duration;

use proto::{AgentId, ReplicaId};
use redis::Script;

use crate::sessions::{SessionHolder, SessionId};

/// The time between two heartbeats of a replica. They are all that an idle replica sends, so this is the load on Redis.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// The TTL of a heartbeat: three may be late or lost. A replica without a heartbeat for this long is dead.
pub(super) const HEARTBEAT_TTL: Duration = Duration::from_secs(17);
/// The TTL of a replica's records, for the case that no other replica is alive to remove them.
pub(super) const ROUTES_TTL: Duration = Duration::from_secs(3600);
/// One heartbeat of this many also renews the TTL of the records and compares their number.
pub(super) const HEARTBEATS_PER_AUDIT: u64 = 3;
/// The TTL of the times when agents disconnected.
pub(super) const GONE_TTL: Duration = Duration::from_secs(7 * 86_400);

/// The TTL of the record of a look at a repository. No replica uses an older one.
pub(super) const LOOK_TTL: Duration = Duration::from_secs(600);
/// The time for which a replica claims a look. A replica that dies meanwhile delays the others for so long.
pub(super) const LOOK_CLAIM_TTL: Duration = Duration::from_secs(5);

/// The TTL of the environments that agents name.
pub(super) const ENVIRONMENTS_TTL: Duration = Duration::from_secs(7 * 86_400);

/// The TTL of the last values of the views of an agent.
pub(super) const VIEWS_TTL: Duration = Duration::from_secs(7 * 86_400);

/// The TTL of the states of the subjects of events: those of a source without events are forgotten then.
pub(super) const STATES_TTL: Duration = Duration::from_secs(90 * 86_400);

/// The TTL of the cursors of the log of events.
pub(super) const CURSORS_TTL: Duration = Duration::from_secs(30 * 86_400);

/// The TTL of the leases of all agents, so that those of agents that no replica dials any more are removed.
pub(super) const LEASES_TTL: Duration = Duration::from_secs(3600);

/// The length of the holder in hexadecimal digits, with which the record of a session begins.
pub(super) const SESSION_HOLDER_LENGTH: usize = 32;

/// The TTL of the list of deployments.
pub(super) const DEPLOYMENTS_TTL: Duration = Duration::from_secs(30 * 86_400);

/// The table of all keys, in Markdown: the output of `kas redis-schema`, and part of docs/redis.md.
pub const SCHEMA: &str = "\
| key | type | content | TTL | written | size |
|---|---|---|---|---|---|
| `{kas}:replicas` | set | ids of the replicas; a dead one until another replica removes it | none | when a replica joins or leaves | 32 bytes per replica |
| `{kas}:replica:<id>` | string | heartbeat: `[1,{url,fleet,kas,started,tunnels,mac}]`; `mac` signs id, fleet and URL with the secret of `private_api` | 17 s | when a replica joins; it and its TTL every 5 s | 200 bytes per replica |
| `{kas}:routes:<id>` | hash | the agents of the replica: agent id → `[1,epoch,[[instance,version,namespace,pod,kubernetes,since,tunnels,cluster,scope],…]]`; the field `generation` counts the connections of the replica; with GitLab, the fields `p<project>` have its agents: `[1,[[id,name],…]]`, and `n<project>` has its path | 1 h | when an agent connects or disconnects; its TTL every 15 s | under 260 bytes per agent, overhead included |
| `{kas}:routes:<id>:next` | hash | the same, until it is complete and replaces `{kas}:routes:<id>` | 1 h | when a replica connects to Redis | |
| `{kas}:gone` | hash | agent id → time when its last tunnel to a replica ended, in seconds since 1970 | 7 d | when an agent disconnects from a replica | 50 bytes per agent |
| `{kas}:check:<id>` | any | scratch value on which `kas check-config --live` tries commands | 10 s, removed at once | by that command | |
| `kas:limit:<digest>` | string | rate limit of an agent token, or of calls to Gitaly: the theoretical arrival time of GCRA, in microseconds since 1970; the digest is a hash of the token's hash, or of the server's address | while it limits, at most 1 min | when an agent opens a tunnel, or kas calls Gitaly | 100 bytes per token |
| `kas:limit:{<digest>}:<limit>` | string | the same for an address of agents, with the limits `connections` and `tokens`; the digest is a hash of the address, or of its /64 for IPv6 | while it limits, at most 1 min | when an agent opens a tunnel, also with an unknown token | 110 bytes per address and limit |
| `{kas}:disabled` | string | rules of the [kill switch](kill-switch.md#kill-switch) for all replicas: `[1,version,{rules:[…]}]` | none | by `kas disable --fleet` and `kas enable --fleet`; by a replica, if Redis has lost it | at most 64 KiB |
| `{kas}:deployments` | list | the newest jobs with an environment that were allowed to use an agent, in JSON; at most 1000 | 30 d | when such a job sends its first request to an agent, and when kas learns the commit or the result of the job | 800 bytes per job |
| `{kas}:environments` | hash | the environments that [agents name](configuration-from-git.md#environments): agent id → JSON of at most 16 KiB | 7 d | when the configuration of an agent changes, when an agent with such a configuration connects, and once a day | 200 bytes per environment |
| `{kas}:leases` | hash | the leases of tunnels to agents that kas [dials](receptive.md): agent id → `<id>=<tunnels>,<reliable>,<end>,<epoch>;` for each replica; the end is in milliseconds since 1970, 12 s after the last renewal | 1 h | every 3 s by each replica, if the identity file or GitLab has such agents | 80 bytes per agent and replica |
| `kas:unknown:<digest>` | string | mark of an agent token that GitLab does not know; the digest is a hash of the token's hash | `agent.info_cache_error_ttl` | when an agent with such a token connects | 80 bytes per token |
| `kas:look:<digest>` | string | last look of a replica at a version of a repository with [manifests](gitops.md): `[1,time,\"result\"]`; the time is in milliseconds since 1970, the result is a hash of the commit, `0` after a failure, and empty while a replica looks; the digest is a hash of URL, version and names of credentials | 10 min, or 5 s while a replica looks | when a replica looks | 120 bytes per version |
| `kas:views:<agent id>` | string | the last values of the [views](graph.md#views) of the agent, in JSON, with their time and the replica that follows them | 7 d | when a value changes, and every 15 s, while the configuration of the agent has views | at most 256 KiB per agent |
| `{kas}:session:<id>` | string | session of a browser on the [web page](web.md#sessions): its holder, and its token, encrypted with a key that is derived from the cookie; the id is a hash of the cookie | until its end, at most 8 h | at a login, and when the tokens of a login at GitLab are renewed | 300 bytes per session, with an OIDC token its length more |
| `{kas}:sessions` | sorted set | ids of all sessions by their ends, in milliseconds since 1970; at most 10,000 | 8 h | at a login or logout | 130 bytes per session |
| `{kas}:sessions:<holder>` | sorted set | the same for one token or user; the holder is a hash of the token's hash, or of the user; at most 50 | 8 h | at a login or logout | 130 bytes per session |
| `{kas}:projects` | sorted set | the projects that the configurations of agents [name](project-events.md), by the last time in milliseconds since 1970; at most 10,000 | 365 d | when an agent with such a configuration connects or its configuration changes | 150 bytes per project |
| `{kas}:project:<path>` | hash | the latest event of each branch and tag of such a project, with its number and its id; at most 100; the field `last` is the last number | 365 d | when the project changes | 600 bytes per branch or tag |
| `{kas}:event-log` | stream | the newest [events](events.md), at most 10,000, and 1000 of an agent: `k` is the key of the event, `s` its source, `e` the event: `[1,{…}]` | 7 d | when something happens | 900 bytes per event, at most 9 KiB |
| `{kas}:event-log:keys` | hash | key of an event → its id in the stream | 7 d | with each event | 150 bytes per event |
| `{kas}:event-log:removed` | string | id of the newest event that was removed | 7 d | when an event is removed | |
| `{kas}:event-log:source:<source>` | list | ids of the events of an agent, or of `kas` | 7 d | with each event | 30 bytes per event |
| `{kas}:event-log:states:<source>` | hash | subject whose state kas has noticed, of an agent or of `kas` → its last state | 90 d | when the state changes | 120 bytes per subject |
| `{kas}:event-log:reported:<agent id>` | hash | subject whose state the agent has reported → its last state, at most 1000 of an agent | 90 d | with each event that has a state | 120 bytes per subject |
| `{kas}:event-log:origins:<agent id>` | hash | process of the agent → number of its last event, at most 1000 of an agent | 90 d | with each event of the agent | 60 bytes per process |
| `{kas}:event-cursors` | hash | name of a webhook, or `merge request notes` → replica that delivers to it or writes them, the end of its claim in milliseconds since 1970, id of the last event that was delivered | 30 d | every 3 s per webhook, with each event, and when a note is written | 100 bytes per webhook |
| `kas:events` | channel | events of replicas: `[1,id,generation,sequence,{beat or changed or pushed or disabled or logged or left}]` | | every 5 s per replica; when an agent connects or disconnects; when GitLab reports a push; when the rules of the fleet change; with each event of the log | |
";

/// The keys of one fleet. Keys that a script uses together have one hash tag, so that a Cluster keeps them on one node.
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

    /// Returns the prefix of the heartbeat keys of all replicas.
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

    /// Returns the key that `kas check-config --live` tries commands on.
    pub(super) fn check(&self, id: ReplicaId) -> String {
        format!("{{{}}}:check:{id}", self.prefix)
    }

    pub(super) fn limit(&self, digest: &str) -> String {
        format!("{}:limit:{digest}", self.prefix)
    }

    /// Returns the key of a limit of an address. The limits of one address have one hash tag.
    pub(super) fn address_limit(&self, digest: &str, limit: &str) -> String {
        format!("{}:limit:{{{digest}}}:{limit}", self.prefix)
    }

    pub(super) fn disabled(&self) -> String {
        format!("{{{}}}:disabled", self.prefix)
    }

    pub(super) fn deployments(&self) -> String {
        format!("{{{}}}:deployments", self.prefix)
    }

    pub(super) fn environments(&self) -> String {
        format!("{{{}}}:environments", self.prefix)
    }

    pub(super) fn leases(&self) -> String {
        format!("{{{}}}:leases", self.prefix)
    }

    pub(super) fn unknown(&self, digest: &str) -> String {
        format!("{}:unknown:{digest}", self.prefix)
    }

    pub(super) fn look(&self, digest: &str) -> String {
        format!("{}:look:{digest}", self.prefix)
    }

    pub(super) fn views(&self, agent: AgentId) -> String {
        format!("{}:views:{agent}", self.prefix)
    }

    /// Returns the prefix of the records of sessions.
    pub(super) fn session_prefix(&self) -> String {
        format!("{{{}}}:session:", self.prefix)
    }

    pub(super) fn session(&self, id: SessionId) -> String {
        format!("{}{id}", self.session_prefix())
    }

    pub(super) fn sessions(&self) -> String {
        format!("{{{}}}:sessions", self.prefix)
    }

    /// Returns the prefix of the sets of the sessions of one holder.
    pub(super) fn holder_sessions_prefix(&self) -> String {
        format!("{{{}}}:sessions:", self.prefix)
    }

    pub(super) fn holder_sessions(&self, holder: SessionHolder) -> String {
        format!("{}{holder}", self.holder_sessions_prefix())
    }

    pub(super) fn projects(&self) -> String {
        format!("{{{}}}:projects", self.prefix)
    }

    /// Returns the key of the events of a project. Its path has letters, digits and any of `_.-/`.
    pub(super) fn project_events(&self, project: &str) -> String {
        format!("{{{}}}:project:{project}", self.prefix)
    }

    pub(super) fn event_log(&self) -> String {
        format!("{{{}}}:event-log", self.prefix)
    }

    pub(super) fn event_keys(&self) -> String {
        format!("{}:keys", self.event_log())
    }

    pub(super) fn removed_event(&self) -> String {
        format!("{}:removed", self.event_log())
    }

    /// Returns the prefix of the lists of the events of one source.
    pub(super) fn event_sources(&self) -> String {
        format!("{}:source:", self.event_log())
    }

    /// Returns the prefix of the states that kas has noticed of one source.
    pub(super) fn event_states(&self) -> String {
        format!("{}:states:", self.event_log())
    }

    /// Returns the prefix of the states that one agent has reported.
    pub(super) fn reported_states(&self) -> String {
        format!("{}:reported:", self.event_log())
    }

    /// Returns the prefix of the numbers of the last events of the processes of one agent.
    pub(super) fn event_origins(&self) -> String {
        format!("{}:origins:", self.event_log())
    }

    pub(super) fn event_cursors(&self) -> String {
        format!("{{{}}}:event-cursors", self.prefix)
    }

    pub(super) fn events(&self) -> String {
        format!("{}:events", self.prefix)
    }
}

macro_rules! scripts {
    ($($name:ident)*) => {
        /// The scripts of this crate. The library sends each text once to a server, and its digest afterwards.
        #[derive(Debug)]
        pub(super) struct Scripts {
            $(pub(super) $name: Script,)*
        }

        impl Scripts {
            pub(super) fn new() -> Self {
                Self { $($name: Script::new(include_str!(concat!("scripts/", stringify!($name), ".lua"))),)* }
            }
        }
    };
}

scripts! { admit append_events begin_session check cleanup deployments disabled end_sessions environments event_cursor heartbeat instances join last_event latest_events lease leave look lookup members name_projects notify project projects publish read_events record_event replace_session session_ttl sessions stage unknown views }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{events::EVENTS_PERIOD, project_events::PROJECT_TTL, sessions::SESSION_TTL};
    use std::collections::BTreeSet;

    #[test]
    fn schema_lists_every_key_and_ttl() {
        let (keys, id) = (Keys::new("kas"), ReplicaId::random());
        for key in [
            keys.replicas(),
            keys.replica(id),
            keys.routes(id),
            keys.next_routes(id),
            keys.gone(),
            keys.check(id),
            keys.limit("<digest>"),
            keys.address_limit("<digest>", "<limit>"),
            keys.disabled(),
            keys.deployments(),
            keys.unknown("<digest>"),
            keys.look("<digest>"),
            keys.environments(),
            keys.leases(),
            keys.views(AgentId(7)),
            format!("{}<id>", keys.session_prefix()),
            keys.sessions(),
            format!("{}<holder>", keys.holder_sessions_prefix()),
            keys.projects(),
            keys.project_events("<path>"),
            keys.event_log(),
            keys.event_keys(),
            keys.removed_event(),
            format!("{}<source>", keys.event_sources()),
            format!("{}<source>", keys.event_states()),
            format!("{}<agent id>", keys.reported_states()),
            format!("{}<agent id>", keys.event_origins()),
            keys.event_cursors(),
            keys.events(),
        ] {
            let key = key.replace(&id.to_string(), "<id>").replace(":7", ":<agent id>");
            assert!(SCHEMA.contains(&format!("| `{key}` |")), "{key}");
        }
        for (key, ttl) in [
            ("replica:<id>", HEARTBEAT_TTL),
            ("routes:<id>", ROUTES_TTL),
            ("gone", GONE_TTL),
            ("deployments", DEPLOYMENTS_TTL),
            ("look:<digest>", LOOK_TTL),
            ("environments", ENVIRONMENTS_TTL),
            ("leases", LEASES_TTL),
            ("views:<agent id>", VIEWS_TTL),
            ("sessions", SESSION_TTL),
            ("sessions:<holder>", SESSION_TTL),
            ("projects", PROJECT_TTL),
            ("project:<path>", PROJECT_TTL),
            ("event-log", EVENTS_PERIOD),
            ("event-log:states:<source>", STATES_TTL),
            ("event-log:reported:<agent id>", STATES_TTL),
            ("event-log:origins:<agent id>", STATES_TTL),
            ("event-cursors", CURSORS_TTL),
        ] {
            let row = SCHEMA.lines().find(|row| row.contains(&format!(":{key}`"))).unwrap();
            let ttl = match ttl.as_secs() {
                seconds @ 0..60 => format!("| {seconds} s |"),
                seconds @ 60..3600 => format!("| {} min, or {} s ", seconds / 60, LOOK_CLAIM_TTL.as_secs()),
                seconds @ 3600..86_400 => format!("| {} h |", seconds / 3600),
                seconds => format!("| {} d |", seconds / 86_400),
            };
            assert!(row.contains(&ttl), "{row} {ttl}");
        }
        assert!(SCHEMA.contains(&format!("its TTL every {} s", HEARTBEAT_INTERVAL.as_secs())));
        assert!(
            SCHEMA.contains(&format!(
                "its TTL every {} s",
                HEARTBEAT_INTERVAL.as_secs() * HEARTBEATS_PER_AUDIT
            ))
        );
    }

    #[test]
    fn document_contains_the_schema() {
        assert!(include_str!("../../../docs/redis.md").contains(SCHEMA));
    }

    fn commands(script: &str) -> BTreeSet<&str> {
        let calls = script.split("call('").skip(1);
        calls.map(|rest| rest.split('\'').next().unwrap()).collect()
    }

    #[test]
    fn check_tries_every_command_of_the_scripts() {
        let check = include_str!("scripts/check.lua");
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/redis/scripts")).unwrap();
        for file in files.map(|file| file.unwrap().path()).filter(|file| !file.ends_with("check.lua")) {
            for command in commands(&std::fs::read_to_string(&file).unwrap()) {
                assert!(check.contains(&format!("{{ '{command}'")), "{command} of {}", file.display());
            }
        }
    }
}
