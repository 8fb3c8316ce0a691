//! The manifest of docs/machines.md: its names are consistent, and its command is valid.

use efa_testing::workspace::{efa_emu, root};
use yaml_rust2::{Yaml, YamlLoader};

/// The block of the page that begins with this line.
fn block(kind: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/machines.md")).unwrap();
    let section = page.split("## In Kubernetes").nth(1).expect("the section");
    let block = section.split(kind).nth(1).expect("the block");
    block.split("```").next().unwrap().to_owned()
}

/// The service and the set of pods.
fn manifest() -> [Yaml; 2] {
    let documents = YamlLoader::load_from_str(&block("```yaml\n")).unwrap();
    documents.try_into().expect("two objects")
}

fn texts(list: &Yaml) -> Vec<&str> {
    let list = list.as_vec().expect("a list").iter();
    list.map(|word| word.as_str().expect("text")).collect()
}

/// The volume that is mounted at this path.
fn volume_at<'a>(pods: &'a Yaml, path: &str) -> &'a Yaml {
    let pod = &pods["spec"]["template"]["spec"];
    let mounts = pod["containers"][0]["volumeMounts"].as_vec().unwrap();
    let mount = mounts
        .iter()
        .find(|mount| mount["mountPath"].as_str() == Some(path));
    let name = &mount.unwrap_or_else(|| panic!("nothing is mounted at {path}"))["name"];
    let volumes = pod["volumes"].as_vec().unwrap();
    volumes
        .iter()
        .find(|volume| volume["name"] == *name)
        .expect("a volume of this name")
}

#[test]
fn the_names_in_the_manifest_agree() {
    let [service, pods] = manifest();
    assert_eq!(service["kind"].as_str(), Some("Service"));
    assert_eq!(pods["kind"].as_str(), Some("StatefulSet"));
    // Without a cluster IP the name resolves to the addresses of all pods.
    assert_eq!(service["spec"]["clusterIP"].as_str(), Some("None"));
    assert_eq!(
        service["spec"]["publishNotReadyAddresses"].as_bool(),
        Some(true)
    );
    let name = &service["metadata"]["name"];
    assert_eq!(*name, pods["spec"]["serviceName"]);
    let labels = &pods["spec"]["template"]["metadata"]["labels"];
    assert_eq!(service["spec"]["selector"], *labels);
    assert_eq!(pods["spec"]["selector"]["matchLabels"], *labels);

    let container = &pods["spec"]["template"]["spec"]["containers"][0];
    let words = texts(&container["command"]);
    let option = |option: &str| {
        let found = words.iter().find_map(|word| word.strip_prefix(option));
        found.unwrap_or_else(|| panic!("{option} in {words:?}"))
    };
    assert_eq!(option("--uplink="), name.as_str().unwrap());
    // The key is the file of the Secret from the commands, which only its group can read.
    let (directory, file) = option("--uplink-key=").rsplit_once('/').unwrap();
    let secret = &volume_at(&pods, directory)["secret"];
    let commands = block("```\n");
    let secret_name = secret["secretName"].as_str().unwrap();
    assert!(
        commands.contains(&format!(
            "kubectl create secret generic {secret_name} --from-file={file}"
        )),
        "{commands}"
    );
    assert!(commands.contains(&format!("efa-emu bridge key {file}")));
    assert_eq!(secret["defaultMode"], Yaml::Integer(400));
    let memory = &volume_at(&pods, "/dev/shm")["emptyDir"]["medium"];
    assert_eq!(memory.as_str(), Some("Memory"));
    // The variable for the pod's name is set from it.
    let variable = &container["env"][0];
    assert_eq!(
        option("--host="),
        format!("$({})", variable["name"].as_str().unwrap())
    );
    let field = &variable["valueFrom"]["fieldRef"]["fieldPath"];
    assert_eq!(field.as_str(), Some("metadata.name"));
}

/// The bridge, which `efa-emu run` starts with the manifest's options, gets as far as the missing
/// key.
#[test]
fn the_command_is_one_of_efa_emu() {
    let [_, pods] = manifest();
    let container = &pods["spec"]["template"]["spec"]["containers"][0];
    let words = texts(&container["command"]);
    assert_eq!(words[0], "efa-emu");
    let words: Vec<String> = words[1..]
        .iter()
        .map(|word| word.replace("$(POD_NAME)", "efa-0"))
        .collect();
    // Others may use the default fabric of programs.
    let fabric = format!("--fabric=kubernetes-{}", std::process::id());
    let (run, options) = words.split_first().unwrap();
    let command = &mut efa_emu(&[run, &fabric]);
    let output = command.args(options).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let key =
        "the bridge to other machines has ended: efa-emu bridge: cannot open /etc/efa/fabric.key";
    assert!(said.contains(key), "{said}");
}
