//! Whether the process runs in a container.

use crate::doctor::system::System;

/// Whether the process runs in a container of Docker, Podman or Kubernetes. Apptainer's share the
/// host's devices and users, so they do not count.
pub(super) fn in_container(system: &System) -> bool {
    let marks = [".dockerenv", "run/.containerenv"];
    let runtimes = ["docker", "kubepods", "containerd", "libpod", "lxc"];
    let groups = system.text("proc/1/cgroup");
    marks.iter().any(|mark| system.exists(mark))
        || runtimes.iter().any(|runtime| groups.contains(runtime))
        || system.raw("KUBERNETES_SERVICE_HOST").is_some()
}
