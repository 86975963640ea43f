#!/usr/bin/env bash
# Makes this machine able to build and run Gristmill, and says what it does.
#
#   ./setup.sh          install what is missing (Debian, Ubuntu) or print the commands for it (elsewhere)
#   ./setup.sh --check  install nothing, only look
#
# What is needed: cargo, a C linker, and a graphics driver that wgpu can use. macOS and Windows bring the driver. On Linux
# it takes the Vulkan loader and one Vulkan driver: that of the GPU, or Mesa's software Vulkan where there is no GPU.
# It is harmless to run this twice. It ends with 0 if everything is there, else with 1.
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }

# ---- what is there ----------------------------------------------------------------------------------------------------

check_cargo() {
    command -v cargo >/dev/null && return 0
    local home="${CARGO_HOME:-${HOME:-}/.cargo}"
    if [[ -x "$home/bin/cargo" ]]; then
        say "cargo is installed but not on the PATH of this shell. Run: . \"$home/env\""
    else
        say "cargo is missing. Install Rust as https://rustup.rs says, then run this again."
    fi
    return 1
}

# Is the shared library $1 (a name, or a path) where the dynamic linker finds it?
has_library() {
    case "$1" in
        */*) [[ -e "$1" ]]; return ;;
    esac
    # ldconfig is often not on a user's PATH. Its list is read whole, since a pipe closed early counts as a failure here.
    local known directory
    known="$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null || true)"
    [[ "$known" == *"$1 "* ]] && return 0
    local IFS=:
    for directory in ${LD_LIBRARY_PATH:-} /usr/local/lib /usr/lib64 /usr/lib /lib; do
        [[ -n "$directory" && -e "$directory/$1" ]] && return 0
    done
    return 1
}

# The manifests of installed Vulkan drivers, in the loader's places, one a line.
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

# Can this user open a render node, of PCI vendor $1 if one is given? A node without a vendor is no PCI device: it counts.
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

# Does the driver with library $1 have a device to drive here?
has_device_for() {
    case "${1##*/}" in
        *lvp* | *swiftshader*) return 0 ;; # these compute on the CPU
        *nvidia*) has_nvidia_device ;;
        *nouveau*) has_render_node 0x10de ;;
        *radeon* | *amdvlk*) has_render_node 0x1002 ;;
        *intel*) has_render_node 0x8086 ;;
        *virtio*) has_render_node 0x1af4 ;;
        *dzn*) [[ -e /dev/dxg ]] ;;
        *) has_render_node ;;
    esac
}

# The libraries of the Vulkan drivers that can work on this machine, one a line.
usable_drivers() {
    local manifest library
    while IFS= read -r manifest; do
        [[ -f "$manifest" && -r "$manifest" ]] || continue
        case "$(uname -m) $manifest" in
            x86_64*.i[3-6]86.json) continue ;; # for 32-bit programs
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

# What `install` has to bring, in our words: loader, driver, linker.
missing_parts() {
    has_library libvulkan.so.1 || printf 'loader '
    [[ -n "$(usable_drivers)" ]] || printf 'driver '
    command -v cc >/dev/null || printf 'linker '
}

# The parts in $1, for people.
described() {
    local text="$1"
    text="${text/loader /the Vulkan loader (libvulkan.so.1), }"
    text="${text/driver /a Vulkan driver that works on this machine, }"
    text="${text/linker /a C linker (cc), }"
    printf '%s' "${text%, }"
}

# ---- what to do about it ----------------------------------------------------------------------------------------------

# The names that the distribution family $1 has for the parts $2...
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
        esac
    done
}

# The distribution family, from the ID and ID_LIKE of os-release.
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

# The command that installs the parts $2... on the family $1. The software driver runs anywhere; a GPU's is faster.
print_commands() {
    local family="$1" list
    list="$(packages "$@")"
    case "$family" in
        debian) say "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${list% }" ;;
        fedora) say "  sudo dnf install -y ${list% }" ;;
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
                say "On $family and its kin:"
                print_commands "$family" "$@"
            done
            ;;
    esac
}

# Prints the word that makes a command run as the superuser, or fails where this user may not.
superuser() {
    if [[ "$(id -u)" == 0 ]]; then
        echo env
    elif command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
        echo sudo
    else
        return 1
    fi
}

# Installs the Debian packages $2... with $1 (see superuser). A fresh or an old machine needs the lists of packages first.
apt_install() {
    local as="$1"
    shift
    local install=("$as" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@")
    if apt-cache show "$@" >/dev/null 2>&1 && "${install[@]}"; then return 0; fi
    say "Fetching the lists of packages (apt-get update)."
    "$as" apt-get update && "${install[@]}"
}

# Says what would make a GPU that stands idle usable.
gpu_hints() {
    local drivers="$1" node
    if has_nvidia_device && [[ "$drivers" != *nvidia* ]]; then
        say "Note: there is an NVIDIA GPU, but not its Vulkan driver, which NVIDIA's proprietary driver brings."
        say "Note: in a container, pass NVIDIA_DRIVER_CAPABILITIES=all; the default leaves Vulkan out."
    fi
    for node in /dev/dri/renderD*; do
        if [[ -e "$node" && ! ( -r "$node" && -w "$node" ) ]]; then
            say "Note: there is a GPU ($node) that this user may not open. Run: sudo usermod -aG render,video \"\$USER\""
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
                say "That is a software driver: everything runs, on the CPU."
            fi
            ;;
    esac
    gpu_hints "$drivers"
}

setup_linux() {
    local missing as distribution
    missing="$(missing_parts)"
    if [[ -z "$missing" ]]; then
        report
        say "Nothing to do."
        return 0
    fi
    say "Missing: $(described "$missing")."
    if [[ "$missing" == *driver* && -n "${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}" ]]; then
        say "VK_DRIVER_FILES or VK_ICD_FILENAMES is set and hides every driver but those it names; none of them works here."
        say "Unset it, then run this again."
        return 1
    fi
    distribution="$(family)"
    # From here on $missing is a list of words.
    # shellcheck disable=SC2046,SC2086
    if [[ "$1" == check ]] || [[ "$distribution" != debian ]] || ! as="$(superuser)"; then
        say "Install it with:"
        print_commands "$distribution" $missing
        gpu_hints ""
        return 1
    else
        say "Installing: $(packages debian $missing)"
        apt_install "$as" $(packages debian $missing) || {
            say "apt-get failed; its messages above say why."
            return 1
        }
    fi
    missing="$(missing_parts)"
    if [[ -n "$missing" ]]; then
        say "Still missing after the installation: $(described "$missing")."
        return 1
    fi
    report
    say "Done."
}

setup_macos() {
    say "macOS brings Metal; no driver is needed."
    command -v cc >/dev/null && return 0
    say "The C linker is missing. Run: xcode-select --install"
    return 1
}

# The comment at the top of this file.
usage() { sed -n '1d; /^set /q; s/^# \{0,1\}//p' "$0"; }

main() {
    local mode=install status=0
    case "${1:-}" in
        "") ;;
        --check) mode=check ;;
        -h | --help)
            usage
            return 0
            ;;
        *)
            usage >&2
            return 1
            ;;
    esac
    check_cargo || status=1
    case "$(uname -s)" in
        Linux) setup_linux "$mode" || status=1 ;;
        Darwin) setup_macos || status=1 ;;
        MINGW* | MSYS* | CYGWIN*) say "Windows brings DirectX 12; no driver is needed." ;;
        *) say "Unknown system $(uname -s): wgpu needs a Vulkan loader and driver, Metal or DirectX 12." ;;
    esac
    return "$status"
}

main "$@"
