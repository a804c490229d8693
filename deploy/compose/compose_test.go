// SPDX-License-Identifier: Apache-2.0

// Package compose_test reads docker-compose.yml and the Dockerfile as a
// container engine would. It is a module of its own, so that what it needs for
// that is not the library's.
package compose_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

const root = "../.."

// load reads the compose file with every profile, and an environment of the
// test's own: the machine's must not fill in what is missing.
func load(t *testing.T, environment ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")},
		cli.WithProfiles([]string{"*"}), cli.WithEnv(environment), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestCompose_services(t *testing.T) {
	t.Parallel()
	if regexp.MustCompile(`(?m)^version:`).MatchString(read(t, "docker-compose.yml")) {
		t.Error("version: is obsolete")
	}
	project := load(t)
	want := map[string]struct {
		image    string
		profiles []string
	}{
		"mysql":   {"mysql:8.4", nil},
		"redis":   {"redis:7.4", nil},
		"mariadb": {"mariadb:11.4", []string{"mariadb"}},
		"demo":    {"tierlock-demo", []string{"demo"}},
	}
	if len(project.Services) != len(want) {
		t.Errorf("services %q, want %d", project.ServiceNames(), len(want))
	}
	for name, service := range project.Services {
		if service.Image != want[name].image || !slices.Equal(service.Profiles, want[name].profiles) {
			t.Errorf("%s: image %q, profiles %q; want %+v", name, service.Image, service.Profiles, want[name])
		}
	}
}

// A server is healthy when it answers a question, not when its process runs.
func TestCompose_health(t *testing.T) {
	t.Parallel()
	services := load(t).Services
	for name, asks := range map[string]string{"mysql": "mysql --host=127.0.0.1 ", "redis": "redis-cli ping", "mariadb": "healthcheck.sh --connect"} {
		check := services[name].HealthCheck
		if check == nil || check.Disable {
			t.Errorf("%s has no health check", name)
			continue
		}
		if len(check.Test) < 2 || check.Test[0] == "NONE" || !strings.Contains(strings.Join(check.Test[1:], " "), asks) {
			t.Errorf("%s: the health check %q does not ask %q", name, check.Test, asks)
		}
		if check.Interval == nil || check.Timeout == nil || check.Retries == nil {
			t.Errorf("%s: the health check leaves interval, timeout or retries to the engine", name)
		}
	}
	for name, service := range services {
		if service.Build == nil {
			continue
		}
		for _, server := range []string{"mysql", "redis"} {
			if on := service.DependsOn[server]; on.Condition != types.ServiceConditionHealthy || !on.Required {
				t.Errorf("%s does not wait until %s is healthy", name, server)
			}
		}
	}
}

// Nothing runs as root or gains rights, and nothing listens beyond loopback.
func TestCompose_unprivileged(t *testing.T) {
	t.Parallel()
	for name, s := range load(t).Services {
		user := s.User
		if s.Build != nil && user == "" {
			user = last(instructions(t), "USER")
		}
		if superuser := regexp.MustCompile(`^(root|0+)?(:|$)`); superuser.MatchString(user) {
			t.Errorf("%s runs as user %q", name, user)
		}
		if s.Privileged || len(s.CapAdd) > 0 || len(s.Devices) > 0 || !slices.Equal(s.CapDrop, []string{"ALL"}) ||
			!slices.Contains(s.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s can do more than it needs", name)
		}
		if s.Pid != "" || s.Ipc != "" || s.NetworkMode != "" {
			t.Errorf("%s shares the host's or another's name spaces", name)
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s listens on %q", name, port.HostIP)
			}
		}
	}
}

// What is mounted exists, is read-only, and in the order in which it works.
func TestCompose_mounts(t *testing.T) {
	t.Parallel()
	project := load(t)
	var initial []string
	for name, service := range project.Services {
		for _, v := range service.Volumes {
			switch v.Type {
			case types.VolumeTypeBind:
				info, err := os.Stat(v.Source)
				if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 {
					t.Errorf("%s mounts %s: %v; want a file that everybody may read", name, v.Source, err)
				}
				if !v.ReadOnly {
					t.Errorf("%s may write %s", name, v.Source)
				}
				initial = append(initial, v.Target+" = "+filepath.Base(v.Source))
			case types.VolumeTypeVolume:
				if _, declared := project.Volumes[v.Source]; !declared || v.Source == "" {
					t.Errorf("%s: volume %q has no name", name, v.Source)
				}
			}
		}
	}
	slices.Sort(initial) // the image goes by name
	const dir = "/docker-entrypoint-initdb.d/"
	want := []string{dir + "10-users.sh = users.sh", dir + "20-schema.sql = schema.sql", dir + "30-grants.sql = grants.sql"}
	if !slices.Equal(initial, want) {
		t.Errorf("mounted\n%s\nwant\n%s", strings.Join(initial, "\n"), strings.Join(want, "\n"))
	}
	for _, server := range []string{"mysql", "mariadb"} {
		if !slices.ContainsFunc(project.Services[server].Volumes, func(v types.ServiceVolumeConfig) bool {
			return v.Type == types.VolumeTypeVolume && v.Target == "/var/lib/mysql"
		}) {
			t.Errorf("%s forgets its data with its container", server)
		}
	}
}

// A lease rests on what the server does not forget.
func TestCompose_durable(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mysql", "mariadb"} {
		service := load(t).Services[name]
		for _, arg := range slices.Concat(service.Entrypoint, service.Command) {
			option, value, _ := strings.Cut(strings.ReplaceAll(arg, "_", "-"), "=")
			if weak := slices.Contains([]string{"--innodb-flush-log-at-trx-commit", "--sync-binlog"}, option) && value != "1"; weak ||
				slices.Contains([]string{"--skip-log-bin", "--innodb-doublewrite", "--read-only"}, option) {
				t.Errorf("%s is started with %s", name, arg)
			}
		}
	}
}

// Every password can be set from outside, and nothing else has to be.
func TestCompose_passwords(t *testing.T) {
	t.Parallel()
	variables := map[string]string{
		"TIERLOCK_MYSQL_ROOT_PASSWORD": "chosen-1", "TIERLOCK_MYSQL_PASSWORD": "chosen-2",
		"SHOP_MYSQL_PASSWORD": "chosen-3", "DEMO_MYSQL_PASSWORD": "chosen-4",
	}
	var environment []string
	for name, value := range variables {
		environment = append(environment, name+"="+value)
	}
	byDefault, chosen := load(t), load(t, environment...)
	for name, service := range byDefault.Services {
		for variable, value := range service.Environment {
			if !strings.HasSuffix(variable, "_PASSWORD") {
				continue
			}
			if value == nil || *value == "" {
				t.Errorf("%s: %s has no default", name, variable)
			}
			if set := chosen.Services[name].Environment[variable]; set == nil || !strings.HasPrefix(*set, "chosen-") {
				t.Errorf("%s: %s cannot be set", name, variable)
			}
		}
	}
	// The users' script and the demo have to agree.
	script := read(t, "deploy/mysql/users.sh")
	for _, m := range regexp.MustCompile(`\$\{(\w+):\?\}`).FindAllStringSubmatch(script, -1) {
		if byDefault.Services["mysql"].Environment[m[1]] == nil {
			t.Errorf("users.sh wants %s, which the container does not have", m[1])
		}
	}
	if arguments := strings.Join(chosen.Services["demo"].Entrypoint, " "); !strings.Contains(arguments, " demo:chosen-4@tcp(mysql:3306)/demo") {
		t.Errorf("the demo's password cannot be set: %s", arguments)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
