//! The values that meet: one list for each dimension. A new feature adds its values here.

/// Defines a dimension as an enum with the texts of its values.
macro_rules! dimension {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$about])* $variant),+ }

        impl $name {
            /// All values, the usual one first.
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the text in the names of cases.
            pub(crate) fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl From<$name> for Value {
            fn from(value: $name) -> Self {
                Self::$name(value)
            }
        }
    };
}

dimension!(
    /// Who sends the request, and how it proves that.
    Caller {
        /// A token of the identity file.
        Token = "token",
        /// The same token as the password of basic authentication.
        Basic = "basic",
        /// The same token in the subprotocol of a WebSocket, as browsers send it.
        WebSocketToken = "websocket-token",
        /// An ID token of an OpenID Provider.
        Oidc = "oidc",
        /// A job of GitLab.
        Job = "job",
        /// A personal access token of GitLab.
        Pat = "pat",
        /// A page of GitLab, in the session of its user.
        GitLabSession = "gitlab-session",
        /// The page of kas, in its session.
        PageSession = "page-session",
        /// The same after a login at GitLab.
        GitLabLogin = "gitlab-login",
    }
);

dimension!(
    /// The agent, and who knows it.
    AgentKind {
        /// agentk with a token of the identity file.
        Identity = "identity",
        /// agentk with a token of GitLab.
        GitLab = "gitlab",
        /// A program of others that speaks GitLab's protocol. Callers of GitLab use it with a token of GitLab.
        Independent = "independent",
        /// agentk of the identity file, which kas dials.
        Receptive = "receptive",
    }
);

dimension!(
    /// How the tunnel is transported.
    Transport {
        /// A WebSocket without TLS.
        Ws = "ws",
        /// A WebSocket with a certificate of a private authority.
        Wss = "wss",
        /// The same, through nginx.
        Nginx = "wss-nginx",
        /// The same, through HAProxy.
        Haproxy = "wss-haproxy",
        /// The same, through Apache httpd.
        Apache = "wss-apache",
        /// The same, through Caddy, a reverse proxy in Go.
        Caddy = "wss-caddy",
        /// gRPC without a WebSocket and without TLS.
        Grpc = "grpc",
        /// gRPC without a WebSocket, with TLS.
        Grpcs = "grpcs",
    }
);

dimension!(
    /// The proxy between the caller and kas. Each of them has TLS.
    Front {
        Direct = "direct",
        Nginx = "nginx",
        Haproxy = "haproxy",
        Apache = "apache",
        Caddy = "caddy",
    }
);

dimension!(
    /// The replica to which the caller talks.
    Replica {
        /// The one with the tunnel.
        Same = "same",
        /// One without a tunnel.
        Other = "other",
    }
);

dimension!(
    /// How the caller names the agent.
    Name {
        Demo = "demo",
        Dash = "edge-berlin",
        /// 63 characters, the longest name.
        Long = "long",
        /// The number. Callers of GitLab use its path, where the credential names the agent.
        Id = "id",
        /// A name that no agent can have.
        Dot = "a.b",
    }
);

dimension!(
    /// How the rights of the caller are written.
    Rights {
        /// `*` in the identity file, and the defaults of GitLab's callers.
        Default = "default",
        /// A list of services: in the identity file, in the entry of `ci_access`, or in `user_access`.
        Listed = "listed",
    }
);

dimension!(
    /// The request of the caller.
    Request {
        Get = "get",
        /// 5,000 objects of 12 MiB.
        List = "list",
        Watch = "watch",
        Post = "post",
        /// A page of a pod, which the API server forwards after a redirect.
        PodProxy = "pod-proxy",
        /// `kubectl logs --follow`
        Logs = "logs",
        ExecWebSocket = "exec-ws",
        ExecSpdy = "exec-spdy",
        ForwardWebSocket = "forward-ws",
        ForwardSpdy = "forward-spdy",
        PromQl = "promql",
        /// The service `graph`.
        Graph = "graph",
        /// The service `gitops`.
        GitOps = "gitops",
        /// The service `alerts`.
        Alerts = "alerts",
        /// The service `events`.
        Events = "events",
        /// The service `audit`, whose log is empty: kas accepts the parameters that it applies, and agentk does not refuse the rest.
        Audit = "audit",
        /// The list of the agents of the caller, and the capacity, the applications and the components of their clusters.
        Agents = "agents",
        /// The environments on the page, which are those of the agents of its session.
        Environments = "environments",
    }
);

dimension!(
    /// How many bytes pass.
    Size {
        Small = "small",
        /// 12 MiB to the caller.
        Down = "down",
        /// 12 MiB to the cluster.
        Up = "up",
    }
);

dimension!(
    /// How the policy of agentk allows namespaces.
    Policy {
        /// Each of them.
        All = "all-namespaces",
        /// By their labels.
        Labels = "by-labels",
    }
);

dimension!(
    /// The event while the request runs.
    Event {
        Nothing = "nothing",
        /// SIGTERM of one of two pods of the agent.
        AgentStops = "agent-stops",
        /// SIGTERM of the replica to which the caller does not talk.
        KasStops = "kas-stops",
        /// Tunnels reach `max_connection_age`.
        Age = "age",
        /// The caller loses its right.
        Revocation = "revocation",
        /// `kas disable`
        KillSwitch = "kill-switch",
        /// The policy file of agentk allows nothing any more.
        Policy = "policy",
    }
);

impl Caller {
    /// Returns whether GitLab knows the caller.
    pub(crate) fn is_of_gitlab(self) -> bool {
        self.names_agent() || self == Self::GitLabLogin
    }

    /// Returns whether the credential names the agent.
    pub(crate) fn names_agent(self) -> bool {
        matches!(self, Self::Job | Self::Pat | Self::GitLabSession)
    }

    /// Returns whether the page of kas sends the request.
    pub(crate) fn is_of_page(self) -> bool {
        matches!(self, Self::PageSession | Self::GitLabLogin)
    }
}

/// One value of any dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Caller(Caller),
    AgentKind(AgentKind),
    Transport(Transport),
    Front(Front),
    Replica(Replica),
    Name(Name),
    Rights(Rights),
    Request(Request),
    Size(Size),
    Event(Event),
    Policy(Policy),
}

/// The number of dimensions.
pub(crate) const DIMENSIONS: usize = 11;

/// One value of each dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) caller: Caller,
    pub(crate) agent: AgentKind,
    pub(crate) transport: Transport,
    pub(crate) front: Front,
    pub(crate) replica: Replica,
    pub(crate) name: Name,
    pub(crate) rights: Rights,
    pub(crate) request: Request,
    pub(crate) size: Size,
    pub(crate) event: Event,
    pub(crate) policy: Policy,
}

impl Case {
    /// Returns the number of values of each dimension.
    pub(crate) const fn counts() -> [usize; DIMENSIONS] {
        [
            Caller::ALL.len(),
            AgentKind::ALL.len(),
            Transport::ALL.len(),
            Front::ALL.len(),
            Replica::ALL.len(),
            Name::ALL.len(),
            Rights::ALL.len(),
            Request::ALL.len(),
            Size::ALL.len(),
            Event::ALL.len(),
            Policy::ALL.len(),
        ]
    }

    /// Returns the value with an index in a dimension.
    pub(crate) fn value(dimension: usize, index: usize) -> Value {
        match dimension {
            0 => Caller::ALL[index].into(),
            1 => AgentKind::ALL[index].into(),
            2 => Transport::ALL[index].into(),
            3 => Front::ALL[index].into(),
            4 => Replica::ALL[index].into(),
            5 => Name::ALL[index].into(),
            6 => Rights::ALL[index].into(),
            7 => Request::ALL[index].into(),
            8 => Size::ALL[index].into(),
            9 => Event::ALL[index].into(),
            _ => Policy::ALL[index].into(),
        }
    }

    /// Returns the case with these indices.
    pub(crate) fn from_indices(indices: [usize; DIMENSIONS]) -> Self {
        let mut case = Self::usual();
        for (dimension, index) in indices.into_iter().enumerate() {
            case = case.with(Self::value(dimension, index));
        }
        case
    }

    /// Returns the case of the first value of each dimension.
    pub(crate) fn usual() -> Self {
        Self {
            caller: Caller::ALL[0],
            agent: AgentKind::ALL[0],
            transport: Transport::ALL[0],
            front: Front::ALL[0],
            replica: Replica::ALL[0],
            name: Name::ALL[0],
            rights: Rights::ALL[0],
            request: Request::ALL[0],
            size: Size::ALL[0],
            event: Event::ALL[0],
            policy: Policy::ALL[0],
        }
    }

    /// Returns the case with another value.
    pub(crate) fn with(self, value: Value) -> Self {
        match value {
            Value::Caller(caller) => Self { caller, ..self },
            Value::AgentKind(agent) => Self { agent, ..self },
            Value::Transport(transport) => Self { transport, ..self },
            Value::Front(front) => Self { front, ..self },
            Value::Replica(replica) => Self { replica, ..self },
            Value::Name(name) => Self { name, ..self },
            Value::Rights(rights) => Self { rights, ..self },
            Value::Request(request) => Self { request, ..self },
            Value::Size(size) => Self { size, ..self },
            Value::Event(event) => Self { event, ..self },
            Value::Policy(policy) => Self { policy, ..self },
        }
    }

    /// Returns all values.
    pub(crate) fn values(self) -> [Value; DIMENSIONS] {
        [
            self.caller.into(),
            self.agent.into(),
            self.transport.into(),
            self.front.into(),
            self.replica.into(),
            self.name.into(),
            self.rights.into(),
            self.request.into(),
            self.size.into(),
            self.event.into(),
            self.policy.into(),
        ]
    }

    /// Returns the name of the test: its values.
    pub(crate) fn text(self) -> String {
        self.values().map(Value::text).join("/")
    }

    /// Returns the case with this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut texts = name.split('/');
        let mut case = Self::usual();
        for (dimension, count) in Self::counts().into_iter().enumerate() {
            let text = texts.next()?;
            let mut values = (0..count).map(|index| Self::value(dimension, index));
            case = case.with(values.find(|value| value.text() == text)?);
        }
        texts.next().is_none().then_some(case)
    }
}

impl Value {
    /// Returns the text in the names of cases.
    fn text(self) -> &'static str {
        match self {
            Self::Caller(value) => value.text(),
            Self::AgentKind(value) => value.text(),
            Self::Transport(value) => value.text(),
            Self::Front(value) => value.text(),
            Self::Replica(value) => value.text(),
            Self::Name(value) => value.text(),
            Self::Rights(value) => value.text(),
            Self::Request(value) => value.text(),
            Self::Size(value) => value.text(),
            Self::Event(value) => value.text(),
            Self::Policy(value) => value.text(),
        }
    }
}
