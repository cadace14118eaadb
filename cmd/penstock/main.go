// SPDX-FileCopyrightText: The Penstock Authors
// SPDX-License-Identifier: Apache-2.0

// Command penstock is the inference gateway, its tools and its simulator.
package main

func main() {}
