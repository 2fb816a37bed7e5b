use git::Location;
use proto::Verb;
use secrecy::SecretString;

use super::*;
use crate::identity::{ConfigurationLocation, DialTarget};

fn hash(token: &str) -> TokenHash {
    TokenHash::of(&SecretString::from(token))
}

fn parse(text: &str) -> Result<Identity, String> {
    Identity::parse(Path::new("id.yaml"), text).map_err(|error| error.to_string())
}

fn example() -> String {
    format!(
        "agents:\n- {{id: 1, name: prod, tokens: ['{}']}}\n- {{id: 2, name: test, tokens: ['{}']}}\n\
         callers:\n- name: ci\n  tokens: ['{}']\n  agents: [prod]\n  services: [kubernetes]\n  \
         access_as: {{impersonate: {{username: 'ci', groups: ['jobs'], extra: [{{key: a/b, val: [c]}}]}}}}\n\
         - {{name: ops, tokens: ['{}'], agents: ['*'], services: ['*'], audit: true}}\n",
        hash("a"),
        hash("b"),
        hash("c"),
        hash("d"),
    )
}

#[test]
fn agents_and_callers_are_found_by_token() {
    let identity = parse(&example()).unwrap();
    assert_eq!(identity.agent(&"a".to_owned().into()).unwrap().id, AgentId(1));
    assert!(identity.agent(&"c".to_owned().into()).is_none(), "a caller is no agent");
    assert_eq!(identity.find("test"), Some(AgentId(2)));
    assert_eq!(identity.find("2"), Some(AgentId(2)));
    assert_eq!(identity.find("3"), None);

    let ci = &identity.grant(&hash("c")).unwrap().caller;
    assert!(ci.may_use(AgentId(1)) && !ci.may_use(AgentId(2)));
    assert!(
        ci.may_use_service(&"kubernetes".parse().unwrap())
            && !ci.may_use_service(&"prometheus".parse().unwrap())
    );
    assert!(matches!(&ci.access_as, AccessAs::Impersonate { username, .. } if username == "ci"));
    let ops = &identity.grant(&hash("d")).unwrap().caller;
    assert!(ops.may_use(AgentId(2)));
    assert_eq!(ops.access_as, AccessAs::Agent);
    assert!(ops.may_audit() && !ci.may_audit());
    assert_eq!(identity.agents_of(ci).len(), 1);
}

#[test]
fn agent_may_be_pinned_to_a_cluster() {
    let pinned = |uid: &str| example().replace("name: prod,", &format!("name: prod, cluster: {uid},"));
    let identity = parse(&pinned("0b5c1e4f-6a0e")).unwrap();
    assert_eq!((identity.cluster(AgentId(1)), identity.cluster(AgentId(2))), (Some("0b5c1e4f-6a0e"), None));
    for bad in ["''", "'a b'", "'é'"] {
        let error = parse(&pinned(bad)).unwrap_err();
        assert!(error.contains("agents[0].cluster: write the UID of the cluster: kubectl get"), "{error}");
    }
}

#[test]
fn streams_continue_with_unchanged_rights() {
    let grant = |identity: &Identity, token: &str| identity.grant(&hash(token)).unwrap().clone();
    let former = parse(&example()).unwrap();
    let (ci, ops) = (grant(&former, "c"), grant(&former, "d"));

    let mut narrowed = parse(&example().replace("agents: ['*']", "agents: [test]")).unwrap();
    narrowed.inherit(&former);
    assert!(!ci.revoked.is_cancelled());
    assert!(ops.revoked.is_cancelled(), "it may use less than before");
    assert!(!grant(&narrowed, "d").revoked.is_cancelled(), "and may come back");

    let networks = example().replace("services: ['*']", "services: ['*'], allowed_networks: [10.0.0.0/8]");
    parse(&networks).unwrap().inherit(&narrowed);
    assert!(grant(&narrowed, "d").revoked.is_cancelled(), "it may connect from fewer addresses");

    let labels = "services: ['*'], prometheus: {labels: {ns: [a]}}";
    let (limited, wider) = (example().replace("services: ['*']", labels), example());
    let (limited, mut wider) = (parse(&limited).unwrap(), parse(&wider).unwrap());
    wider.inherit(&limited);
    assert!(grant(&limited, "d").revoked.is_cancelled(), "other labels are other rights");
    let prometheus = "prometheus".parse().unwrap();
    assert!(grant(&limited, "d").caller.labels(&prometheus).is_some());
    assert!(grant(&limited, "d").caller.labels(&"kubernetes".parse().unwrap()).is_none());
    assert!(grant(&wider, "d").caller.labels(&prometheus).is_none());

    let busy = Arc::clone(&grant(&former, "c").in_flight);
    let both = format!("{}', '{}", hash("c"), hash("new"));
    let mut rotated = parse(&example().replace(&hash("c").to_string(), &both)).unwrap();
    rotated.inherit(&former);
    assert!(Arc::ptr_eq(&grant(&rotated, "new").in_flight, &busy), "one limit for all tokens of a caller");

    Identity::default().inherit(&narrowed);
    assert!(ci.revoked.is_cancelled());
}

#[test]
fn file_with_more_nodes_than_the_library_reads_by_default_is_read() {
    let nodes = Budget::default().max_nodes + 1;
    let text = format!(
        "callers: [{{name: a, tokens: [], agents: [{}], services: []}}]",
        "x,\n".repeat(nodes) + "'*'"
    );
    assert!(parse(&text).is_ok());
}

#[test]
fn invalid_entry_is_refused_with_its_position() {
    for (text, expected) in [
        ("agents: [{id: 1, name: UP, tokens: []}]", "agents[0].name"),
        ("agents: [{id: 1, name: a, tokens: [secret]}]", "sha256:"),
        (
            "agents:\n- {id: 1, name: a, tokens: []}\n- {id: 1, name: b, tokens: []}",
            "id.yaml:3:8: agents[1].id: another agent has the id 1",
        ),
        (
            "callers: [{name: a, tokens: [], agents: [x], services: ['*']}]",
            "callers[0].agents: there is no agent \"x\"",
        ),
        ("callers: [{name: a, tokens: [], agents: ['*'], services: [control]}]", "reserved for kas"),
        ("callers: [{name: 'a:b', tokens: [], agents: [], services: []}]", "without ':'"),
        ("callers: [{name: 'a ', tokens: [], agents: [], services: []}]", "blanks around it"),
        (
            "callers: [{name: a, tokens: [], agents: [], services: [], access_as: {impersonate: {username: a, groups: [' b']}}}]",
            "access_as.impersonate.groups: groups travels in a header: it must not be empty, begin or end with a blank",
        ),
        (
            "callers: [{name: a, tokens: [], agents: [], services: [], access_as: {impersonate: {username: ''}}}]",
            "must not be empty",
        ),
        (
            "callers: [{name: a, tokens: [], agents: [], services: [], access_as: {root: {}}}]",
            "unknown variant",
        ),
        (
            "callers: [{name: a, tokens: [], agents: [], services: [], prometheus: {labels: {}}}]",
            "callers[0].prometheus.labels: at least one label",
        ),
        (
            "callers: [{name: a, tokens: [], agents: [], services: [], prometheus: {label: {a: [b]}}}]",
            "unknown field `label`",
        ),
        (
            "callers: [{name: a, tokens: [], agents: ['*'], services: [configuration]}]",
            "'configuration' is reserved for kas",
        ),
        (
            "agents: [{id: 1, name: a, tokens: [], configuration: {repository: {url: 'http://host/a'}}}]",
            "agents[0].configuration.repository.url: a repository decides",
        ),
        ("agents: [{id: 1, name: a, tokens: [], configuration: {files: a}}]", "agents[0].configuration"),
        (
            "agents: [{id: 1, name: a, tokens: [], allowed_networks: []}]",
            "agents[0].allowed_networks: the list is empty",
        ),
        (
            "callers: [{name: a, tokens: [], agents: [], services: [], allowed_networks: [10.0.0.1]}]",
            "\"10.0.0.1\" is not a network",
        ),
        ("people: []", "unknown field `people`"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text}\n gave {error}");
    }

    let three = format!("agents: [{{id: 1, name: a, tokens: ['{0}', '{0}', '{0}']}}]", hash("a"));
    assert!(parse(&three).unwrap_err().contains("at most 2 tokens"));
    let twice = format!("agents: [{{id: 1, name: a, tokens: ['{0}', '{0}']}}]", hash("a"));
    assert!(parse(&twice).unwrap_err().contains("listed twice"));
}

#[test]
fn configuration_of_an_agent_is_a_file_or_a_repository() {
    let text = "agents:\n- {id: 1, name: a, tokens: [], configuration: {file: agents/a.yaml}}\n\
                - {id: 2, name: b, tokens: [], configuration: {repository: {url: 'https://host/p.git', \
                password_file: token}}}\n- {id: 3, name: c, tokens: []}";
    let identity = Identity::parse(Path::new("/etc/kas/id.yaml"), text).unwrap();
    let file = ConfigurationLocation::File("/etc/kas/agents/a.yaml".into());
    assert_eq!(identity.configuration(AgentId(1)), Some(&file));
    let Some(ConfigurationLocation::Repository(repository)) = identity.configuration(AgentId(2)) else {
        panic!("agent 2 has a repository");
    };
    let password = Some(("git".to_owned(), "/etc/kas/token".into()));
    assert!(matches!(&repository.location, Location::Https { credentials, .. } if *credentials == password));
    assert_eq!(identity.configuration(AgentId(3)), None);
}

#[test]
fn agent_with_url_is_dialled() {
    let with = |keys: &str| example().replace("name: prod,", &format!("name: prod, {keys},"));
    let identity = parse(&with("url: 'wss://10.0.0.7:8150'")).unwrap();
    let targets: Vec<_> = identity.dial_targets().collect();
    let [
        (
            AgentId(1),
            DialTarget {
                url,
                tunnels: 2,
                ca_file: None,
                key_file: None,
                tls_server_name: None,
                credentials: None,
            },
        ),
    ] = &targets[..]
    else {
        panic!("{targets:?}")
    };
    assert_eq!((url.host(), url.port()), ("10.0.0.7", 8150));

    let all = "url: 'wss://a', tunnels: 16, ca_file: ca.pem, key_file: /keys/prod, tls_server_name: agentk";
    let text = with(all);
    let identity = Identity::parse(Path::new("/etc/kas/id.yaml"), &text).unwrap();
    let (_, target) = identity.dial_targets().next().unwrap();
    assert_eq!((target.tunnels, target.tls_server_name.as_deref()), (16, Some("agentk")));
    assert_eq!(target.ca_file.as_deref(), Some(Path::new("/etc/kas/ca.pem")));
    assert_eq!(target.key_file.as_deref(), Some(Path::new("/keys/prod")));

    for (keys, expected) in [
        ("url: 'https://a'", "agents[0].url"),
        ("url: 'wss://a', tunnels: 0", "agents[0].tunnels: an agent has 1 to 16 tunnels"),
        ("url: 'wss://a', tunnels: 17", "agents[0].tunnels: an agent has 1 to 16 tunnels"),
        ("key_file: key", "agents[0].key_file: it has no effect without url"),
        ("tunnels: 3", "agents[0].tunnels: it has no effect without url"),
    ] {
        let error = parse(&with(keys)).unwrap_err();
        assert!(error.contains(expected), "{keys}: {error}");
    }
}

#[test]
fn right_to_audit_logs_of_clusters_is_one_of_its_own() {
    let audit = "audit".parse().unwrap();
    let rights = |text: &str| {
        let identity = parse(text).unwrap();
        let ops = &identity.grant(&hash("d")).unwrap().caller;
        (ops.may_use_service(&audit), ops.may_audit())
    };
    assert_eq!(rights(&example()), (false, true), "neither services: ['*'] nor audit: true is enough");
    assert_eq!(rights(&example().replace("audit: true", "cluster_audit: true")), (true, false));
    let error = parse(&example().replace("services: ['*']", "services: [audit]")).unwrap_err();
    assert!(
        error.contains("callers[1].services: the right to read the audit log of a cluster is"),
        "{error}"
    );
}

#[test]
fn service_may_have_some_of_its_verbs() {
    let rights = |services: &str| {
        let text = example().replace("services: ['*']", &format!("services: {services}"));
        let identity = parse(&text)?;
        let ops = Arc::clone(&identity.grant(&hash("d")).unwrap().caller);
        let may = |verb| ops.may(&"gitops".parse().unwrap(), verb);
        Ok::<_, String>([Verb::Read, Verb::Sync, Verb::Suspend, Verb::Approve].map(may))
    };
    for (services, expected) in [
        ("['*']", [true; 4]),
        ("[gitops]", [true; 4]),
        ("[{service: gitops}]", [true; 4]),
        ("[{service: gitops, verbs: [read]}]", [true, false, false, false]),
        ("[kubernetes, {service: gitops, verbs: [read, sync]}]", [true, true, false, false]),
        (
            "[{service: gitops, verbs: [approve]}, {service: gitops, verbs: [read]}]",
            [true, false, false, true],
        ),
        ("[{service: gitops, verbs: []}]", [false; 4]),
        ("[graph]", [false; 4]),
    ] {
        assert_eq!(rights(services), Ok(expected), "{services}");
    }
    for (services, expected) in [
        ("[{service: graph, verbs: [sync]}]", "callers[1].services"),
        ("[{service: graph, verbs: [sync]}]", "the service graph has no verb sync; it has read"),
        ("[{service: gitops, verb: [sync]}]", "unknown field `verb`"),
        ("[{service: control}]", "reserved for kas"),
        ("[{service: audit}]", "the right to read the audit log of a cluster is cluster_audit: true"),
        ("[7]", "the name of a service, a map with the keys service and verbs, or *"),
    ] {
        let error = rights(services).unwrap_err();
        assert!(error.contains(expected), "{services}: {error}");
    }
}
