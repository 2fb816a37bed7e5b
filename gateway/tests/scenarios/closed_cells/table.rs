//! The table of docs/access.md as attacks: which cells a caller has at an agent, and how kas refuses the others.

/// The rights in the order of docs/access.md, each with the method and the path of a request that needs it.
pub(super) const RIGHTS: [(&str, &str, &str); 12] = [
    ("kubernetes use", "GET", "kubernetes/api/v1/pods"),
    ("prometheus use", "GET", "prometheus/api/v1/query?query=up"),
    ("prometheus.thanos use", "GET", "prometheus.thanos/api/v1/query?query=up"),
    ("graph read", "GET", "graph/v1/objects"),
    ("gitops read", "GET", "gitops/v1/projects"),
    ("gitops sync", "POST", "gitops/v1/projects/shop%2Fweb/sync"),
    ("gitops suspend", "POST", "gitops/v1/projects/shop%2Fweb/suspend"),
    ("gitops approve", "POST", "gitops/v1/projects/shop%2Fweb/approve"),
    ("events read", "GET", "events/v1/events"),
    ("alerts read", "GET", "alerts/v1/alerts"),
    ("audit read", "GET", "audit/v1/events"),
    ("provision use", "DELETE", "provision/v1/environments/30/other"),
];

/// The cells of a caller at an agent.
pub(super) struct Row {
    pub(super) caller: &'static str,
    /// The agent in the path.
    pub(super) agent: &'static str,
    /// For each of [`RIGHTS`]: `+` the caller has it, `-` kas refuses it, `.` another row has it. Spaces do not count.
    pub(super) rights: &'static str,
    pub(super) refusal: Refusal,
}

/// A refusal as the caller sees it.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    pub(super) status: u16,
    /// The value of `Kas-Error`, or nothing without that header.
    pub(super) error: &'static str,
    /// A part of the message: the list that can allow the request, or the cause.
    pub(super) message: &'static str,
    /// The same for `audit` and for `provision`, to which other lists give the right.
    of_audit: &'static str,
    of_provision: &'static str,
}

impl Refusal {
    pub(super) const fn new(status: u16, error: &'static str, message: &'static str) -> Self {
        Self { status, error, message, of_audit: message, of_provision: message }
    }

    /// Returns the refusal of a right.
    pub(super) fn of(self, right: &str) -> Self {
        let message = match right {
            "audit read" => self.of_audit,
            "provision use" => self.of_provision,
            _ => self.message,
        };
        Self { message, ..self }
    }
}

const fn row(caller: &'static str, agent: &'static str, rights: &'static str, refusal: Refusal) -> Row {
    Row { caller, agent, rights, refusal }
}

pub(super) const fn forbidden(message: &'static str) -> Refusal {
    Refusal::new(403, "forbidden", message)
}

pub(super) const fn unauthorized(message: &'static str) -> Refusal {
    Refusal::new(401, "unauthorized", message)
}

/// No right at all.
const NONE: &str = "---- ---- ----";
/// All rights but that to the audit log of the cluster.
const ALL: &str = "++++ ++++ ++-+";

const PROVISION: &str = "the service provision is for the environment of the job alone";
const ENTRY: Refusal = Refusal {
    of_audit: "cluster_audit of its entry in the identity file of kas can allow it",
    ..forbidden("services of its entry in the identity file of kas can allow it")
};
const JOB: Refusal = Refusal {
    of_provision: PROVISION,
    ..forbidden("services of its entry of ci_access in the configuration of the agent can allow it")
};
const USER: Refusal = Refusal {
    of_provision: PROVISION,
    ..forbidden("services of user_access in the configuration of the agent can allow it")
};
const PROMQL: Refusal = forbidden("a token of GitLab may be used for the service prometheus only");

/// The callers at an agent of theirs: the columns of docs/access.md, and entries with some rights.
#[rustfmt::skip]
pub(super) const OWN_AGENTS: &[Row] = &[
    //                                  ┌ kubernetes
    //                                  │┌ prometheus
    //                                  ││┌ prometheus.thanos
    //                                  │││┌ graph
    //                                  ││││ ┌ gitops: read
    //                                  ││││ │┌ sync
    //                                  ││││ ││┌ suspend
    //                                  ││││ │││┌ approve
    //                                  ││││ ││││ ┌ events
    //                                  ││││ ││││ │┌ alerts
    //                                  ││││ ││││ ││┌ audit
    //                                  ││││ ││││ │││┌ provision
    row("entry all", "prod",             ALL,              ENTRY),
    row("entry all", "edge",             ALL,              ENTRY),
    row("entry kubernetes", "prod",      "+--- ---- ----", ENTRY),
    row("entry graph", "prod",           "---+ ---- ----", ENTRY),
    row("entry gitops", "prod",          "---- ++-- ----", ENTRY),
    row("entry thanos", "prod",          "--+- ---- ----", ENTRY),
    row("entry auditor", "prod",         "---- ---- --+-", ENTRY),
    row("entry one-of-gitlab", "7",      "---+ +--- ----", ENTRY),
    row("entry group-of-gitlab", "7",    ALL,              ENTRY),
    row("entry all-of-gitlab", "8",      ALL,              ENTRY),
    row("entry auditor-of-gitlab", "7",  "---- ---- --+-", ENTRY),
    row("OIDC developers", "prod",       "+--+ ---- ----", ENTRY),
    row("OIDC release", "7",             "---- +++- +---", ENTRY),
    row("job as agentk", "7",            "++-+ ++-- ----", JOB),
    row("job", "7",                      "+--+ ++-- ----", JOB),
    row("job of another project", "7",   "+--+ +--- ----", JOB),
    row("job of a group", "7",           "+--+ +--- ----", JOB),
    row("job with services", "7",        "+--- +--- +---", JOB),
    row("job without kubernetes", "7",   "---+ ++-- ----", JOB),
    row("user as agentk", "7",           "++-+ +--- ++--", USER),
    row("developer", "7",                "+--+ +--- ++--", USER),
    row("maintainer", "7",               "+--+ ++++ ++--", USER),
    row("owner", "7",                    "+--+ ++++ ++--", USER),
    row("developer of the bank", "8",    "+--+ +--- ++--", USER),
    row("session of a developer", "7",   "+--+ +--- ++--", USER),
    row("session of a maintainer", "7",  "+--+ ++++ ++--", USER),
    row("page of a developer", "7",      "+--+ +--- ++--", USER),
    row("page of a maintainer", "7",     "+--+ ++++ ++--", USER),
    row("page of an owner", "7",         "+--+ ++++ ++--", USER),
    row("page of entry graph", "prod",   "---+ ---- ----", ENTRY),
    row("page of OIDC developers", "prod", "+--+ ---- ----", ENTRY),
    row("GitLab itself", "7",            "-++- ---- ----", PROMQL),
];

const NO_AGENT: Refusal = Refusal::new(404, "unknown-agent", "there is no agent");
const OTHER_AGENT: Refusal = forbidden("the credential is for another agent than the path names");
const NOT_ALLOWED: Refusal = forbidden(
    "agentId is not allowed: add the project of this job to ci_access in the configuration of agent",
);
const NOT_ADMITTED: Refusal = forbidden("does not admit this user");
const NO_USER: Refusal =
    unauthorized("GitLab does not let this user use this agent, or the credential is not valid");

/// The callers at the agents of others, and at agents that do not exist. An agent that a caller of the file may not use looks like one that
/// does not exist.
#[rustfmt::skip]
pub(super) const OTHER_AGENTS: &[Row] = &[
    row("entry kubernetes", "edge",    NONE, NO_AGENT),
    row("entry kubernetes", "2",       NONE, NO_AGENT),
    row("entry kubernetes", "away",    NONE, NO_AGENT),
    row("entry kubernetes", "7",       NONE, NO_AGENT),
    row("entry kubernetes", "99",      NONE, NO_AGENT),
    row("entry kubernetes", "nowhere", NONE, NO_AGENT),
    row("entry auditor", "edge",       NONE, NO_AGENT),
    // `*` is none of GitLab.
    row("entry all", "7",              NONE, NO_AGENT),
    row("entry all", "8",              NONE, NO_AGENT),
    row("entry all", "shop",           NONE, NO_AGENT),
    row("entry one-of-gitlab", "8",    NONE, NO_AGENT),
    row("entry one-of-gitlab", "10",   NONE, NO_AGENT),
    row("entry one-of-gitlab", "prod", NONE, NO_AGENT),
    row("entry group-of-gitlab", "8",  NONE, NO_AGENT),
    // kas does not know the project of an agent that is not connected.
    row("entry group-of-gitlab", "10", NONE, NO_AGENT),
    row("entry group-of-gitlab", "prod", NONE, NO_AGENT),
    // GitLab has an agent 2, too.
    row("entry all-of-gitlab", "2",    NONE, NO_AGENT),
    row("entry all-of-gitlab", "prod", NONE, NO_AGENT),
    row("OIDC developers", "edge",     NONE, NO_AGENT),
    row("OIDC developers", "7",        NONE, NO_AGENT),
    row("OIDC release", "prod",        NONE, NO_AGENT),
    row("OIDC release", "8",           NONE, NO_AGENT),
    row("job", "8",                    NONE, OTHER_AGENT),
    row("job", "prod",                 NONE, OTHER_AGENT),
    row("job", "bank",                 NONE, OTHER_AGENT),
    row("job for agent 8", "8",        NONE, NOT_ALLOWED),
    row("job for agent 99", "99",      NONE, NOT_ALLOWED),
    row("job for agent 1", "prod",     NONE, NOT_ALLOWED),
    row("job for agent 2", "edge",     NONE, forbidden("the identity file of kas has another agent with this id")),
    // GitLab compares the environment and the branch with the entry, and its answer has no agent.
    row("job of another environment", "7", NONE, NOT_ALLOWED),
    row("job that GitLab refuses", "7", NONE, forbidden("GitLab does not let this job use agents")),
    row("developer", "8",              NONE, OTHER_AGENT),
    row("developer", "prod",           NONE, OTHER_AGENT),
    row("developer for agent 8", "8",  NONE, NOT_ADMITTED),
    row("developer for agent 99", "99", NONE, NO_USER),
    row("developer for agent 1", "prod", NONE, NO_USER),
    row("developer of the bank for agent 7", "7", NONE, NOT_ADMITTED),
    row("guest", "7",                  NONE, NOT_ADMITTED),
    row("session of a developer", "8", NONE, OTHER_AGENT),
    row("session for agent 8", "8",    NONE, NOT_ADMITTED),
    row("page of a developer", "8",    NONE, NOT_ADMITTED),
    row("page of a developer", "prod", NONE, NO_AGENT),
    row("page of a developer", "1",    NONE, forbidden("the identity file of kas has another agent with this id")),
    row("page of a maintainer", "8",   NONE, NOT_ADMITTED),
    row("page of a guest", "7",        NONE, NOT_ADMITTED),
    row("page of a reporter", "7",     NONE, NOT_ADMITTED),
    row("page of entry graph", "edge", NONE, NO_AGENT),
    row("page of entry graph", "7",    NONE, NO_AGENT),
    row("page of OIDC developers", "7", NONE, NO_AGENT),
    row("GitLab itself", "8",          "-... ---- ----", PROMQL),
    row("GitLab itself", "prod",       ".--. .... ....", NO_AGENT),
    row("GitLab itself", "nowhere",    ".--. .... ....", NO_AGENT),
];

const NOT_CONNECTED: Refusal = Refusal::new(503, "agent-not-connected", "agent");

/// The callers at agents of theirs that are not connected. kas answers for events by itself.
#[rustfmt::skip]
pub(super) const AGENTS_THAT_ARE_AWAY: &[Row] = &[
    row("entry all", "away",           "---- ---- +-.-", NOT_CONNECTED),
    row("entry all", "away",           ".... .... ..-.", ENTRY),
    row("entry all-of-gitlab", "10",   "---- ---- +-.-", NOT_CONNECTED),
    row("entry all-of-gitlab", "99",   "---- ---- .-.-", NOT_CONNECTED),
    row("job for agent 10", "10",      "-..- -... ....", NOT_CONNECTED),
    row("job for agent 10", "10",      ".--. ..-- ----", JOB),
    row("job for agent 10", "10",      ".... .-.. ....", Refusal::new(503, "identity-unavailable", "whether the manifests are in the project of this job")),
    row("developer for agent 10", "10", "-... .... ....", NOT_CONNECTED),
    row("developer for agent 10", "10", ".--- ---- ---.", Refusal::new(503, "identity-unavailable", "kas does not know what user_access.services of the agent says")),
    row("page of a developer", "99",   NONE, Refusal::new(503, "identity-unavailable", "kas does not know whom user_access of agent 99 admits")),
];

const UNKNOWN: Refusal = unauthorized("the token is unknown or was revoked");

/// Credentials that are no credentials of anybody now, or at this listener. None of them has a right at any agent.
#[rustfmt::skip]
pub(super) const REFUSED_CREDENTIALS: &[(&str, Refusal)] = &[
    ("nobody",                         unauthorized("an Authorization header with a token is missing")),
    ("two tokens",                     unauthorized("there is more than one Authorization header")),
    ("wrong token",                    UNKNOWN),
    ("revoked token",                  UNKNOWN),
    ("token of agent prod",            UNKNOWN),
    ("token of agent 7",               UNKNOWN),
    ("token of entry all with another name", UNKNOWN),
    ("token of entry elsewhere",       Refusal::new(403, "address-not-allowed", "the networks of the entry of caller elsewhere")),
    ("token of the operator",          forbidden("the token names no project")),
    ("expired token of the operator",  unauthorized("the token is invalid")),
    ("forged token of the operator",   unauthorized("the token is invalid")),
    ("expired OIDC token",             unauthorized("the OIDC token is refused (expired)")),
    ("OIDC token for another audience", unauthorized("the OIDC token is refused (wrong-audience)")),
    ("OIDC token of another issuer",   unauthorized("the OIDC token is refused (unknown-issuer)")),
    ("OIDC token without an entry",    unauthorized("the OIDC token is refused (no-matching-caller)")),
    ("forged OIDC token",              unauthorized("the OIDC token is refused (signature)")),
    ("job token without its agent",    UNKNOWN),
    ("user token without its agent",   UNKNOWN),
    ("cookie of the page of kas",      unauthorized("an Authorization header with a token is missing")),
    ("ended session of the page",      unauthorized("there is no session")),
    ("expired session of the page",    unauthorized("there is no session")),
    ("forged session of the page",     unauthorized("there is no session")),
];

/// Credentials for agent 7 that GitLab does not know, or that name another agent of the file.
#[rustfmt::skip]
pub(super) const REFUSED_BY_GITLAB: &[(&str, Refusal)] = &[
    ("job that has finished",          unauthorized("CI job token: GitLab refuses it")),
    ("token of a user as one of a job", Refusal::new(404, "unknown-agent", "the token is not that of a CI job")),
    ("token of a job as one of a user", NO_USER),
    ("unknown token of a user",        NO_USER),
    ("token of a user without a scope", NO_USER),
    ("token of entry all as one of a job", NO_AGENT),
    ("token of entry all as a cookie", NO_USER),
    ("session without its CSRF token", unauthorized("needs the header X-Csrf-Token")),
    ("session with another CSRF token", NO_USER),
];
