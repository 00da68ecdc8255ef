"""Checks the variables that make a process one of several, and its connection to the others."""

import os
import re
import socket

from jaxpose.cluster.process_info import ProcessInfo, detect_process
from jaxpose.config import MeshConfig
from jaxpose.doctor.finding import OK, PROBLEM, WARNING, Finding
from jaxpose.errors import UserError

# Variables that give a process its number in the run, by the program that sets them.
_VARIABLES = (
    r"JAXPOSE_(COORDINATOR|NUM_PROCESSES|PROCESS_ID)",
    r"SLURM_(JOB_ID|NTASKS|PROCID|LOCALID|STEP_NODELIST|STEP_TASKS_PER_NODE)",
    r"OMPI_COMM_WORLD_(SIZE|RANK|LOCAL_RANK)",
    r"JOB_COMPLETION_INDEX",
    r"MASTER_(ADDR|PORT)|RANK|WORLD_SIZE|NODE_RANK|LOCAL_RANK",
)
_CONNECT_LIMIT_S = 5.0


def processes() -> Finding:
    """Reports the number of this process from the environment variables."""
    found = {name: os.environ[name] for name in sorted(os.environ) if re.fullmatch("|".join(_VARIABLES), name)}
    variables = ", ".join(f"{name}={value}" for name, value in found.items()) or "no variables of several processes"
    try:
        who = _who()
    except UserError as error:
        return PROBLEM, f"{variables}; {error}"
    if who.count == 1:
        return OK, f"a single process ({variables})"
    return OK, f"this would be process {who.index} of {who.count}, with process 0 at {who.address} ({variables})"


def coordinator() -> Finding:
    """Checks whether process 0 can be reached: its host name and its port."""
    who = _who_or_alone()
    if who.count == 1:
        return OK, "none is needed by one process"
    host, _, port = who.address.rpartition(":")
    host = host.strip("[]")
    try:
        resolved = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return PROBLEM, f"the name {host} is not known here ({error}): give one that every host knows, or an address"
    ip = resolved[4][0]
    text = f"{host} is {ip}"
    if who.index == 0:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:
            return PROBLEM, f"{text}; port {port} cannot be used here ({error.strerror}): choose another"
        text += f"; port {port} is free here"
    else:
        try:
            socket.create_connection((host, int(port)), _CONNECT_LIMIT_S).close()
            text += f"; something listens at port {port}"
        except ConnectionRefusedError:
            text += f"; it answers, and nothing listens at port {port} yet"
        except OSError as error:
            return PROBLEM, f"{text}; port {port} is not reached ({error}): open it, or choose another"
    if str(ip).startswith("127.") and host != "localhost" and not host.startswith("127."):
        return WARNING, f"{text}; that is this machine alone: other hosts must know it by another address (/etc/hosts)"
    return OK, text


def proxies() -> Finding:
    """Looks for proxies, which processes of a run cannot connect through."""
    names = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
    found = [name for name in os.environ if name.lower() in names and os.environ[name]]
    if not found:
        return OK, "none"
    who = _who_or_alone()
    spared = [entry.strip() for entry in os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")).split(",")]
    if who.count == 1 or who.address.rpartition(":")[0] in spared or "*" in spared:
        return OK, f"{', '.join(found)}: not in the way"
    return WARNING, f"{', '.join(found)} can make JAX hang: unset {' '.join(found)}, or add the coordinator to no_proxy"


def count_processes() -> int:
    """Returns the number of processes of the run, 1 if the variables make no sense."""
    return _who_or_alone().count


def _who() -> ProcessInfo:
    return detect_process(os.environ, MeshConfig())


def _who_or_alone() -> ProcessInfo:
    try:
        return _who()
    except UserError:
        return ProcessInfo()
