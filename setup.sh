#!/usr/bin/env bash
# Installs what this machine lacks to build and run Gristmill, and reports what it does.
#
#   ./setup.sh                install what is missing (Debian, Ubuntu) or print the commands for it (elsewhere)
#   ./setup.sh --mpi          also what the feature mpi needs: an MPI library and libclang, which reads its header
#   ./setup.sh --tensorboard  also TensorBoard, by which tests read event files back, into target/python
#   ./setup.sh --browser      also Chromium, in which tests open the report of a run
#   ./setup.sh --check [--mpi] [--tensorboard] [--browser]  only check, install nothing
#
# Required: cargo, a C linker, and a graphics driver that wgpu can use. macOS and Windows include the driver. Linux needs
# the Vulkan loader and one Vulkan driver: that of the GPU, or Mesa's software Vulkan driver on a machine without a GPU.
# Running this again is harmless. The exit code is 0 if everything is available, otherwise 1.
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }

# ---- checks ----------------------------------------------------------------------------------------------------

check_cargo() {
    command -v cargo >/dev/null && return 0
    local home="${CARGO_HOME:-${HOME:-}/.cargo}"
    if [[ -x "$home/bin/cargo" ]]; then
        say "cargo is installed but not on the PATH of this shell. Run: . \"$home/env\""
    else
        say "cargo is missing. Install Rust from https://rustup.rs, then run this again."
    fi
    return 1
}

# Whether the dynamic linker finds the shared library $1, a name or a path.
has_library() {
    case "$1" in
        */*) [[ -e "$1" ]]; return ;;
    esac
    # ldconfig is often not on a user's PATH. Its output is read in full: with pipefail a pipe closed early would fail.
    local known directory
    known="$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null || true)"
    [[ "$known" == *"$1 "* ]] && return 0
    local IFS=:
    for directory in ${LD_LIBRARY_PATH:-} /usr/local/lib /usr/lib64 /usr/lib /lib; do
        [[ -n "$directory" && -e "$directory/$1" ]] && return 0
    done
    return 1
}

# The manifests of installed Vulkan drivers, from the search path of the Vulkan loader, one per line.
driver_manifests() {
    local chosen="${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}" place
    local IFS=:
    if [[ -n "$chosen" ]]; then
        for place in $chosen; do
            if [[ -d "$place" ]]; then compgen -G "$place/*.json" || true; else printf '%s\n' "$place"; fi
        done
        return
    fi
    for place in "${XDG_CONFIG_HOME:-${HOME:-}/.config}" ${XDG_CONFIG_DIRS:-/etc/xdg} /usr/local/etc /etc \
        "${XDG_DATA_HOME:-${HOME:-}/.local/share}" ${XDG_DATA_DIRS:-/usr/local/share:/usr/share}; do
        compgen -G "$place/vulkan/icd.d/*.json" || true
    done
}

# Whether this user can open a render node, of PCI vendor $1 if given. Nodes without a vendor (not PCI) always match.
has_render_node() {
    local node vendor
    for node in /dev/dri/renderD*; do
        [[ -r "$node" && -w "$node" ]] || continue
        vendor="/sys/class/drm/${node##*/}/device/vendor"
        if [[ -z "${1:-}" || ! -r "$vendor" || "$(<"$vendor")" == "$1" ]]; then return 0; fi
    done
    return 1
}

has_nvidia_device() { compgen -G '/dev/nvidia[0-9]*' >/dev/null; }

# Whether this machine has a device for the driver with library $1.
has_device_for() {
    case "${1##*/}" in
        *lvp* | *swiftshader*) return 0 ;; # software drivers
        *nvidia*) has_nvidia_device ;;
        *nouveau*) has_render_node 0x10de ;;
        *radeon* | *amdvlk*) has_render_node 0x1002 ;;
        *intel*) has_render_node 0x8086 ;;
        *virtio*) has_render_node 0x1af4 ;;
        *dzn*) [[ -e /dev/dxg ]] ;;
        *) has_render_node ;;
    esac
}

# The libraries of the Vulkan drivers that are usable on this machine, one per line.
usable_drivers() {
    local manifest library
    while IFS= read -r manifest; do
        [[ -f "$manifest" && -r "$manifest" ]] || continue
        case "$(uname -m) $manifest" in
            x86_64*.i[3-6]86.json) continue ;; # 32-bit driver
        esac
        library="$(sed -n 's/.*"library_path"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p' "$manifest")"
        case "$library" in
            "") continue ;;
            /*) ;;
            */*) library="${manifest%/*}/$library" ;;
        esac
        if has_library "$library" && has_device_for "$library"; then printf '%s\n' "${library##*/}"; fi
    done < <(driver_manifests) | sort -u
}

has_mpi() { command -v mpicc >/dev/null && command -v mpirun >/dev/null; }

# Whether bindgen will find libclang, and with it the headers that belong to it, which a package of its own may have.
has_libclang() {
    local place libraries headers
    [[ -z "${LIBCLANG_PATH:-}" ]] || return 0
    for place in /usr/lib/llvm*/lib /usr/lib64/llvm*/lib /usr/lib64 /usr/lib /usr/local/lib; do
        # Not libclang-cpp, which is another library.
        libraries="$(compgen -G "$place/libclang.so*" || compgen -G "$place/libclang-[0-9]*.so*" || true)"
        headers="$(compgen -G "$place/clang/*/include/stddef.h" || compgen -G "/usr/lib/clang/*/include/stddef.h" || true)"
        if [[ -n "$libraries" && -n "$headers" ]]; then return 0; fi
    done
    return 1
}

# Whether tests will find a Chromium.
has_browser() {
    local name
    for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
        command -v "$name" >/dev/null && return 0
    done
    return 1
}

# The missing parts: a list of the words loader, driver, linker; with mpi in $1 also mpi, libclang, and with browser browser.
missing_parts() {
    has_library libvulkan.so.1 || printf 'loader '
    [[ -n "$(usable_drivers)" ]] || printf 'driver '
    command -v cc >/dev/null || printf 'linker '
    if [[ "$1" == *mpi* ]]; then
        has_mpi || printf 'mpi '
        has_libclang || printf 'libclang '
    fi
    if [[ "$1" == *browser* ]]; then has_browser || printf 'browser '; fi
}

# The parts in $1, as text for messages.
described() {
    local text="$1"
    text="${text/loader /the Vulkan loader (libvulkan.so.1), }"
    text="${text/driver /a Vulkan driver that works on this machine, }"
    text="${text/linker /a C linker (cc), }"
    text="${text/mpi /an MPI library (mpicc, mpirun), }"
    text="${text/libclang /libclang, }"
    text="${text/browser /Chromium, }"
    printf '%s' "${text%, }"
}

# ---- installation ----------------------------------------------------------------------------------------------

# The package names of the parts $2... in the distribution family $1.
packages() {
    local family="$1" part
    shift
    for part in "$@"; do
        case "$family-$part" in
            debian-loader) printf 'libvulkan1 ' ;;
            debian-linker) printf 'gcc libc6-dev ' ;;
            debian-driver | fedora-driver) printf 'mesa-vulkan-drivers ' ;;
            fedora-loader | alpine-loader) printf 'vulkan-loader ' ;;
            arch-loader) printf 'vulkan-icd-loader ' ;;
            arch-driver) printf 'vulkan-swrast ' ;;
            suse-loader) printf 'libvulkan1 ' ;;
            suse-driver) printf 'libvulkan_lvp ' ;;
            alpine-driver) printf 'mesa-vulkan-swrast ' ;;
            alpine-linker) printf 'gcc musl-dev ' ;;
            *-linker) printf 'gcc ' ;;
            debian-mpi) printf 'mpich libmpich-dev ' ;;
            debian-libclang) printf 'libclang-dev ' ;;
            fedora-mpi | suse-mpi) printf 'mpich mpich-devel ' ;;
            arch-mpi) printf 'openmpi ' ;;
            arch-libclang) printf 'clang ' ;;
            alpine-mpi) printf 'openmpi openmpi-dev ' ;;
            alpine-libclang) printf 'clang-dev ' ;;
            *-libclang) printf 'clang-devel ' ;;
            *-browser) printf 'chromium ' ;;
        esac
    done
}

# The distribution family, from ID and ID_LIKE in os-release.
family() {
    local ids=""
    # shellcheck source=/dev/null
    if [[ -r /etc/os-release ]]; then ids="$(. /etc/os-release && printf '%s %s' "${ID:-}" "${ID_LIKE:-}")"; fi
    case " $ids " in
        *" debian "* | *" ubuntu "*) echo debian ;;
        *" fedora "* | *" rhel "*) echo fedora ;;
        *" arch "*) echo arch ;;
        *suse*) echo suse ;;
        *" alpine "*) echo alpine ;;
        *) echo unknown ;;
    esac
}

# Prints the command that installs the parts $2... on the family $1: the software driver, which runs on any machine.
print_commands() {
    local family="$1" list
    list="$(packages "$@")"
    case "$family" in
        debian) say "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${list% }" ;;
        fedora)
            say "  sudo dnf install -y ${list% }"
            if [[ "$list" == *mpich* ]]; then say "  module load mpi/mpich-$(uname -m)   # in each shell that builds or runs"; fi
            ;;
        arch)
            say "  sudo pacman -S --needed ${list% }"
            say "  (for a GPU also one of: vulkan-radeon, vulkan-intel, nvidia-utils)"
            ;;
        suse)
            say "  sudo zypper install -y ${list% }"
            say "  (for a GPU also one of: libvulkan_radeon, libvulkan_intel, or NVIDIA's own driver)"
            ;;
        alpine) say "  sudo apk add ${list% }" ;;
        *)
            shift
            for family in debian fedora arch suse alpine; do
                say "On $family and its derivatives:"
                print_commands "$family" "$@"
            done
            ;;
    esac
}

# Prints the prefix that runs a command as root (env or sudo), or fails if this user has no such rights.
superuser() {
    if [[ "$(id -u)" == 0 ]]; then
        echo env
    elif command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
        echo sudo
    else
        return 1
    fi
}

# Installs the Debian packages $2... with the prefix $1 (see superuser), updating the package lists first if needed.
apt_install() {
    local as="$1"
    shift
    local install=("$as" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@")
    if apt-cache show "$@" >/dev/null 2>&1 && "${install[@]}"; then return 0; fi
    say "Updating the package lists (apt-get update)."
    "$as" apt-get update && "${install[@]}"
}

# Prints hints for a GPU that is present but not usable.
gpu_hints() {
    local drivers="$1" node
    if has_nvidia_device && [[ "$drivers" != *nvidia* ]]; then
        say "Note: there is an NVIDIA GPU, but its Vulkan driver, part of NVIDIA's proprietary driver, is not installed."
        say "Note: in a container, pass NVIDIA_DRIVER_CAPABILITIES=all; the default leaves Vulkan out."
    fi
    for node in /dev/dri/renderD*; do
        if [[ -e "$node" && ! ( -r "$node" && -w "$node" ) ]]; then
            say "Note: this user has no access to the GPU ($node). Run: sudo usermod -aG render,video \"\$USER\""
            say "Note: then log in again."
            break
        fi
    done
}

report() {
    local drivers
    drivers="$(usable_drivers)"
    say "Vulkan loader: found. Vulkan drivers for this machine: ${drivers//$'\n'/, }."
    case "$drivers" in
        *lvp* | *swiftshader*)
            if [[ "$(wc -l <<<"$drivers")" == 1 ]]; then
                say "This is a software driver: everything runs, on the CPU."
            fi
            ;;
    esac
    gpu_hints "$drivers"
    if [[ "$1" == *mpi* ]]; then say "MPI: $(command -v mpicc). libclang: found."; fi
    if [[ "$1" == *browser* ]]; then say "Chromium: found."; fi
}

# Installs or checks as $1 says (install, check), with what the words in $2 need (mpi, browser).
setup_linux() {
    local missing as distribution
    missing="$(missing_parts "$2")"
    if [[ -z "$missing" ]]; then
        report "$2"
        say "Nothing to do."
        return 0
    fi
    say "Missing: $(described "$missing")."
    if [[ "$missing" == *driver* && -n "${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}" ]]; then
        say "VK_DRIVER_FILES or VK_ICD_FILENAMES restricts the Vulkan loader to drivers that do not work on this machine."
        say "Unset it, then run this again."
        return 1
    fi
    distribution="$(family)"
    # $missing is a list of words and is split on purpose.
    # shellcheck disable=SC2046,SC2086
    if [[ "$1" == check ]] || [[ "$distribution" != debian ]] || ! as="$(superuser)"; then
        say "Install it with:"
        print_commands "$distribution" $missing
        gpu_hints ""
        return 1
    else
        say "Installing: $(packages debian $missing)"
        apt_install "$as" $(packages debian $missing) || {
            say "apt-get failed; see its messages above."
            return 1
        }
    fi
    missing="$(missing_parts "$2")"
    if [[ -n "$missing" ]]; then
        say "Still missing after the installation: $(described "$missing")."
        return 1
    fi
    report "$2"
    say "Done."
}

setup_macos() {
    local status=0
    say "macOS includes Metal; no driver is needed."
    command -v cc >/dev/null || {
        say "The C linker is missing. Run: xcode-select --install"
        status=1
    }
    # Xcode's command line tools include libclang.
    if [[ "$1" == *mpi* ]] && ! has_mpi; then
        say "The MPI library (mpicc, mpirun) is missing. Run: brew install mpich"
        status=1
    fi
    return "$status"
}

setup_windows() {
    say "Windows includes DirectX 12; no driver is needed."
    if [[ "$1" == *mpi* && -z "${MSMPI_INC:-}" ]]; then
        say "Microsoft MPI is missing. Run: winget install Microsoft.msmpi Microsoft.msmpisdk LLVM.LLVM"
        return 1
    fi
}

# TensorBoard has an environment of Python to itself, so that nothing of the system's changes.
setup_tensorboard() {
    local root python requirements
    root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
    python="$root/target/python" requirements="$root/tests/tensorboard/requirements.txt"
    if "$python/bin/python" -c 'import tensorboard' 2>/dev/null; then
        say "TensorBoard: found."
        return 0
    fi
    if [[ "$1" == check ]]; then
        say "TensorBoard is missing. Run: ./setup.sh --tensorboard"
        return 1
    fi
    say "Installing TensorBoard into target/python."
    if python3 -m venv "$python" && "$python/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"; then
        say "Done."
    else
        say "TensorBoard cannot be installed; see the messages above. It needs python3 with its module venv, and pip."
        return 1
    fi
}

# Prints the comment at the top of this file.
usage() { sed -n '1d; /^set /q; s/^# \{0,1\}//p' "$0"; }

main() {
    local mode=install features="" tensorboard=no status=0 argument
    for argument in "$@"; do
        case "$argument" in
            --check) mode=check ;;
            --mpi) features+=" mpi" ;;
            --tensorboard) tensorboard=yes ;;
            --browser) features+=" browser" ;;
            -h | --help)
                usage
                return 0
                ;;
            *)
                usage >&2
                return 1
                ;;
        esac
    done
    check_cargo || status=1
    case "$(uname -s)" in
        Linux) setup_linux "$mode" "$features" || status=1 ;;
        Darwin) setup_macos "$features" || status=1 ;;
        MINGW* | MSYS* | CYGWIN*) setup_windows "$features" || status=1 ;;
        *) say "Unknown system $(uname -s): wgpu needs a Vulkan loader and driver, Metal or DirectX 12." ;;
    esac
    if [[ "$tensorboard" == yes ]]; then setup_tensorboard "$mode" || status=1; fi
    return "$status"
}

main "$@"
