// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// Container is one process to start and the root folder that it sees.
type Container struct {
	Root         string // an empty folder of its own
	Program      string // a static executable
	Args         []string
	Env          []string
	Dir          string // working folder inside, "/" if empty
	Hostname     string
	Mounts       []Mount
	ReadOnlyRoot bool
	User         *User // nil: the user of the rig
	DropCaps     bool  // keep no capability, whatever the user
}

// Mount shows a file or folder of the rig inside a container.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// User is who the process is.
type User struct {
	UID, GID int
	Groups   []int
}

// initSpec is what Start tells Init.
type initSpec struct {
	*Container
	OwnNetwork bool // the pod's network namespace is file 5
}

// Process is a started container.
type Process struct {
	done chan struct{}
	cmd  *exec.Cmd
}

// initName is argv[0] of the step between: the rig's own executable in the new
// namespaces, before it becomes the container's program.
const initName = "rig-container-init"

// Start runs the container with its output going to out and returns once the
// program itself has been executed, so that an error says what was missing.
// out stays the caller's to close.
func (p *Pod) Start(c *Container, out *os.File) (*Process, error) {
	spec, err := json.Marshal(initSpec{Container: c, OwnNetwork: p.netns != nil})
	if err != nil {
		return nil, err
	}
	specRead, specWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer specRead.Close()
	failRead, failWrite, err := os.Pipe()
	if err != nil {
		specWrite.Close()
		return nil, err
	}
	defer failRead.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{initName}
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{specRead, failWrite}
	if p.netns != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, p.netns)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // an interrupt at the terminal is for the command, not for pods
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	err = cmd.Start()
	failWrite.Close()
	if err != nil {
		specWrite.Close()
		return nil, err
	}
	go func() {
		specWrite.Write(spec)
		specWrite.Close()
	}()
	// The other end closes when the program is executed, or with a reason.
	reason, _ := io.ReadAll(failRead)
	if len(reason) > 0 {
		cmd.Wait()
		return nil, errors.New(strings.TrimSpace(string(reason)))
	}
	proc := &Process{cmd: cmd, done: make(chan struct{})}
	go func() {
		cmd.Wait()
		close(proc.done)
	}()
	return proc, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends a signal to the process; SIGKILL ends its children too, because
// it is the first of its PID namespace.
func (p *Process) Signal(s syscall.Signal) { p.cmd.Process.Signal(s) }

// Exit tells how the process ended: its code, or 128 and the signal. It must be
// called after Done.
func (p *Process) Exit() (code int32, signal int32) {
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int32(status.Signal()), int32(status.Signal())
	}
	return int32(status.ExitStatus()), 0
}

// Init must be the first call of main. In the process that Start made it
// becomes the container's program and does not return.
func Init() {
	if os.Args[0] != initName {
		return
	}
	fail := os.NewFile(4, "fail")
	syscall.CloseOnExec(4)
	err := becomeContainer(os.NewFile(3, "spec"))
	fmt.Fprintln(fail, err)
	os.Exit(1)
}
