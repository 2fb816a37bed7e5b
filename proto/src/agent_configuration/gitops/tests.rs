use super::*;

fn parse(text: &str) -> Result<ManifestProject, String> {
    let gitops: Gitops =
        serde_saphyr::from_str(&format!("manifest_projects: [{text}]")).map_err(|e| e.to_string())?;
    gitops.validate().map_err(|invalid| invalid.to_string())?;
    Ok(gitops.manifest_projects.into_iter().next().unwrap())
}

#[test]
fn every_key_of_gitlab_has_its_default() {
    let project = parse("{}").unwrap();
    assert_eq!(project, ManifestProject::default());
    assert_eq!(project.default_namespace, "default");
    assert_eq!(project.paths[0].glob, "**/*.{yaml,yml,json}");
    assert_eq!(
        (project.reconcile_timeout, project.prune_timeout),
        (Duration::from_secs(3600), Duration::from_secs(3600))
    );
    assert_eq!(project.dry_run_strategy, DryRunStrategy::None);
    assert_eq!(project.prune_propagation_policy, PropagationPolicy::Foreground);
    assert_eq!(project.inventory_policy, InventoryPolicy::MustMatch);
    assert!(project.prune);
}

#[test]
fn empty_value_is_the_default() {
    for keys in [
        "paths:",
        "paths: []",
        "default_namespace:",
        "default_namespace: ''",
        "dry_run_strategy:",
        "dry_run_strategy: ''",
        "prune_propagation_policy: ''",
        "inventory_policy: ''",
        "{prune_propagation_policy: , inventory_policy: , prune: , reconcile_timeout: , prune_timeout: , ref: , id: }",
    ] {
        let keys = if keys.starts_with('{') { keys.to_owned() } else { format!("{{{keys}}}") };
        assert_eq!(parse(&keys), Ok(ManifestProject::default()), "{keys}");
    }
    assert_eq!(serde_saphyr::from_str::<Gitops>("manifest_projects:").unwrap(), Gitops::default());
}

#[test]
fn every_key_is_parsed_and_survives_json() {
    let project = parse(
        "{ignore_differences: [{kinds: [Deployment.apps], paths: [spec.replicas, 'spec.a[*].b']}], \
         id: group/app, name: app, ref: {tag: v1}, default_namespace: shop, paths: [{glob: '/prod/**/*.yaml'}], \
         reconcile_timeout: 600s, dry_run_strategy: server, prune: false, prune_timeout: 60s, \
         prune_propagation_policy: orphan, inventory_policy: adopt_all, \
         resource_inclusions: [{api_groups: [apps], kinds: ['*']}], \
         resource_exclusions: [{api_groups: ['*'], kinds: [Secret]}], interval: 1m, namespaces: [shop], \
         cluster_scoped: true, max_prune_percent: 10, max_prune: 1, prune_irreplaceable: true, self_heal: report, suspend: true, \
         run_as: {service_account: deployer}, render: helm, conflicts: report, allow_unstable_rendering: true, \
         merge_request_previews: true, \
         helm: {release_name: shop, values_files: [a/b.yaml], values: {replicas: 2}}}",
    )
    .unwrap();
    assert_eq!(project.r#ref, Some(GitRef::Tag("v1".to_owned())));
    assert_eq!(project.service_account(), Some(("shop", "deployer")));
    assert_eq!(project.self_heal, SelfHeal::Report);
    assert!(
        project.allows_cluster_scoped() && project.allows_namespace("shop") && !project.allows_namespace("x")
    );
    assert!(project.allows_kind("apps", "Deployment") && !project.allows_kind("", "Secret"));
    let json = serde_json::to_value(&project).unwrap();
    assert_eq!(serde_json::from_value::<ManifestProject>(json).unwrap(), project);
    let json = serde_json::to_value(project.into_named()).unwrap();
    assert_eq!(json.get("merge_request_previews"), None, "an older agentk does not know the key");
}

#[test]
fn invalid_key_is_refused_by_name() {
    for (text, expected) in [
        ("{ids: a}", "unknown field `ids`"),
        ("{id: ''}", "id must be the path"),
        ("{ref: {branch: a, tag: b}}", ""),
        ("{ref: {commit: abc}}", "ref.commit must be the full id"),
        ("{ref: {branch: '-x'}}", "not the name of a branch"),
        ("{ref: {branch: 'a..b'}}", "not the name of a branch"),
        ("{default_namespace: A}", "\"A\" is not a namespace"),
        ("{namespaces: []}", "name at least one namespace"),
        ("{namespaces: ['*']}", "\"*\" is not a namespace"),
        ("{paths: [{glob: ''}]}", "must not be empty"),
        ("{paths: [{glob: 'a{b'}]}", "paths: error parsing glob"),
        ("{max_prune_percent: 101}", "max_prune_percent"),
        ("{self_heal: perhaps}", "true, report or false"),
        ("{run_as: {service_account: a/b/c}}", "service_account must be"),
        ("{resource_inclusions: [{api_groups: [], kinds: [a]}]}", "each entry needs"),
        ("{ignore_differences: [{kinds: [a], paths: [/spec/a]}]}", "\"/spec/a\" is not a path such as"),
        (
            "{ignore_differences: [{kinds: [a], paths: [metadata.name]}]}",
            "only single labels and annotations",
        ),
        (
            "{ignore_differences: [{kinds: [], paths: [a]}]}",
            "ignore_differences: each entry needs kinds and paths",
        ),
        ("{ignore_differences: [{paths: [a]}]}", "missing field `kinds`"),
        ("{id: a}, {id: a}", "a is listed twice"),
        ("{}, {}", "is listed twice"),
        ("{id: a}, {id: b, name: a}", "a is listed twice"),
        ("{id: a, name: x}, {id: a, name: x}", "x is listed twice"),
        ("{name: a/b}", "name must have"),
        ("{reconcile_timeout: 10}", "duration"),
        ("{render: kustomize, helm: {}}", "helm: it has no effect"),
        ("{render: plain, allow_unstable_rendering: true}", "allow_unstable_rendering: it has no effect"),
        ("{helm: {release_name: A}}", "helm.release_name must have"),
        ("{helm: {values_files: [../x]}}", "helm.values_files: \"../x\" is not a path"),
        ("{helm: {values_files: [/x]}}", "helm.values_files: \"/x\" is not a path"),
        ("{helm: {set: {}}}", "unknown field `set`"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text} gave {error}");
    }
}

#[test]
fn service_account_may_be_an_object() {
    let of = |text: &str| {
        let project = parse(&format!("{{default_namespace: shop, run_as: {{service_account: {text}}}}}"));
        project.map(|project| {
            project.service_account().map(|(namespace, name)| format!("{namespace}/{name}")).unwrap()
        })
    };
    for (text, expected) in [
        ("deployer", "shop/deployer"),
        ("ops/deployer", "ops/deployer"),
        ("{name: deployer}", "shop/deployer"),
        ("{name: deployer, namespace: ops}", "ops/deployer"),
    ] {
        assert_eq!(of(text).as_deref(), Ok(expected), "{text}");
    }
    assert!(of("{name: deployer, uid: 1}").unwrap_err().contains("uid"));
    assert!(of("1").unwrap_err().contains("{name, namespace}"));
}

#[test]
fn projects_of_one_repository_have_names() {
    let project = parse("{id: group/app, name: app-prod}, {id: group/app}, {name: own}, {}").unwrap();
    assert_eq!(project.name(), Some("app-prod"));
    let named = project.into_named();
    assert_eq!((named.name.as_deref(), named.id.as_deref()), (None, Some("app-prod")));
    assert_eq!(parse("{id: group/app}").unwrap().into_named().id.as_deref(), Some("group/app"));
}

#[test]
fn ignored_fields_are_those_of_a_kind() {
    let project = parse(
        "{ignore_differences: [{kinds: [Deployment], paths: [a]}, {kinds: [Job.batch, Role.example.com], paths: [b]}, \
         {kinds: ['*'], paths: [c]}, {kinds: [Secret.], names: [web, pw], paths: [d]}]}",
    )
    .unwrap();
    let of = |group: &str, kind: &str| {
        project.ignored_fields(group, kind, "web").map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of("apps", "Deployment"), "a c");
    assert_eq!(of("batch", "Job"), "b c");
    assert_eq!((of("", "Secret"), of("example.com", "Secret")), ("c d".to_owned(), "c".to_owned()));
    assert_eq!(project.ignored_fields("", "Secret", "other").count(), 1);
    assert_eq!((of("volcano.sh", "Job"), of("example.com", "Role")), ("c".to_owned(), "b c".to_owned()));
}

#[test]
fn cluster_scoped_objects_are_refused_with_a_list_of_namespaces() {
    assert!(parse("{}").unwrap().allows_cluster_scoped());
    assert!(!parse("{namespaces: [a]}").unwrap().allows_cluster_scoped());
}

#[test]
fn project_is_looked_at_in_another_directory() {
    let at =
        |directory: &str| parse("{id: a}").unwrap().at(Some(GitRef::Branch("x".to_owned())), Some(directory));
    for (directory, path, expected) in [
        ("prod", "prod/a/b.yaml", true),
        ("prod/", "staging/b.yaml", false),
        ("/prod/./a", "prod/a/b.json", true),
        ("./[a]*", "[a]*/b.yaml", true),
        ("[a]*", "a/b.yaml", false),
        (".", "any/where.yml", true),
    ] {
        let project = at(directory).unwrap();
        assert_eq!(project.r#ref, Some(GitRef::Branch("x".to_owned())));
        assert_eq!(project.matchers().unwrap()[0].is_match(path), expected, "{directory} {path}");
    }
    for wrong in ["", "/", "a//b", "../x", "a/../b"] {
        assert!(matches!(at(wrong), Err(InvalidManifestProject::Directory(_))), "{wrong}");
    }
    let error = parse("{id: a}").unwrap().at(Some(GitRef::Commit("abc".to_owned())), None).unwrap_err();
    assert_eq!(error, InvalidManifestProject::Commit);
}

#[test]
fn glob_matches_as_doublestar_does() {
    for (glob, path, expected) in [
        ("**/*.{yaml,yml,json}", "a.yaml", true),
        ("**/*.{yaml,yml,json}", "a/b/c.json", true),
        ("**/*.{yaml,yml,json}", "a/b/c.txt", false),
        ("/manifests/*.yaml", "manifests/a.yaml", true),
        ("/manifests/*.yaml", "manifests/sub/a.yaml", false),
        ("a/**/b.yaml", "a/b.yaml", true),
        ("file.yaml", "dir/file.yaml", false),
        ("./deploy/**/*.yaml", "deploy/kube/a.yaml", true),
        ("./a.yaml", "a.yaml", true),
        ("**/*.{yaml,yml,json}", ".gitlab-ci.yml", false),
        ("**/*.{yaml,yml,json}", "a/.b.yaml", false),
        ("**/.*.yaml", "a/.b.yaml", true),
        (".hidden/a.yaml", ".hidden/a.yaml", true),
    ] {
        let project = parse(&format!("{{paths: [{{glob: '{glob}'}}]}}")).unwrap();
        let matches = project.matchers().unwrap()[0].is_match(path);
        assert_eq!(matches, expected, "{glob} {path}");
    }
}
