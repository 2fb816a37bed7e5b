//! Projects that kustomize and helm render.

use super::*;

#[test]
fn kustomization_and_chart_become_objects() {
    let Some(world) = World::or_skip("gitops-render") else { return };
    for tool in ["kustomize", "helm"] {
        if testing::skip::program_path(tool).is_none() {
            testing::skip::skipped(&format!("there is no {tool}: .ci/install-tools builds it"));
            return;
        }
    }
    let kustomization = |text: &'static str| ("manifests/kustomization.yaml", Some(text));
    let a = config_map("a", "one");
    world.configure(
        "",
        &[
            kustomization("resources: [../base, b.yaml]\nnamePrefix: prod-\n"),
            ("manifests/b.yaml", Some(&config_map("b", "one"))),
            ("base/kustomization.yaml", Some("resources: [a.yaml]\n")),
            ("base/a.yaml", Some(&a)),
        ],
    );
    eventually("the overlay is applied", || world.config_maps() == "prod-a prod-b");
    world.wait_for_state("synced");

    world.repository.commit_files(&[("base/a.yaml", Some(&config_map("a", "two")))]);
    eventually("a change of the base is applied", || world.data("prod-a") == "two");

    world.repository.commit_files(&[kustomization("resources: ['https://example.com/x.yaml']\n")]);
    let status = world.wait_for_state("failed");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("kas fetches nothing for kustomize"), "{message}");
    world.repository.commit_files(&[
        kustomization("resources: [broken.yaml]\n"),
        ("manifests/broken.yaml", Some("a: [")),
    ]);
    eventually("the program's error is shown", || {
        world.status()["message"].as_str().is_some_and(|message| message.contains("kustomize failed"))
    });
    assert_eq!(world.config_maps(), "prod-a prod-b", "nothing is deleted");

    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-a, labels: {e2e: gitops}}\n\
                    data: {key: '{{ .Values.key }}'}\n";
    world.configure(
        "render: helm, max_prune_percent: 100, helm: {release_name: shop, values: {key: three}}",
        &[
            ("manifests/Chart.yaml", Some("apiVersion: v2\nname: shop\nversion: 1.0.0\n")),
            ("manifests/templates/a.yaml", Some(template)),
        ],
    );
    eventually("the chart is applied", || world.config_maps() == "shop-a" && world.data("shop-a") == "three");
    world
        .repository
        .commit_to_branch("values", &[("manifests/templates/a.yaml", &template.replace("-a", "-b"))]);
    let output = world.gitops(&["diff", PROJECT, "--ref", "values"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("shop-b (manifests (helm template):"), "{text}");
}

#[test]
fn chart_is_rendered_for_the_cluster_of_the_agent() {
    let Some(world) = World::or_skip("gitops-versions") else { return };
    if testing::skip::helm().is_none() {
        testing::skip::skipped("there is no helm: .ci/install-tools builds it");
        return;
    }
    let version = world.namespace.kubectl.ok(&["get", "--raw", "/version"]);
    let version: Value = serde_json::from_str(&version).unwrap();
    let version = version["gitVersion"].as_str().unwrap();
    // Without the cluster, helm knows no kinds and a version of its own.
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {e2e: gitops}}\n\
                    data: {key: '{{ .Capabilities.KubeVersion }} {{ .Capabilities.APIVersions.Has \"apps/v1/Deployment\" }}'}\n";
    let chart = format!("apiVersion: v2\nname: shop\nversion: 1.0.0\nkubeVersion: '={version}'\n");
    world.configure(
        "render: helm",
        &[("manifests/Chart.yaml", Some(&chart)), ("manifests/templates/a.yaml", Some(template))],
    );
    let expected = format!("{version} true");
    eventually("the chart is applied", || world.data("a") == expected);
    world.wait_for_state("synced");
}
