-- KEYS: open, held, lapsed, limits, in the order in which they were reserved.
-- ARGV: base of the keys, id, mode; for each limit its terms and what was used of
-- it. Modes: "first"; "again" when an earlier try may have come through; "undo"
-- when it is not known whether there is a reservation; "charge" when there is none.
-- Gives 1 if it counted, 2 if it did and the server has lost the reservation.

local id, mode = ARGV[2], ARGV[3]
local held, lost = false, false
if mode == 'charge' then
  if redis.call('ZADD', KEYS[3], 'NX', now, id) == 0 then return 0 end
  redis.call('PEXPIRE', KEYS[3], REMEMBER / 1000)
else
  lapse(KEYS[1], KEYS[2], KEYS[3], ARGV[1])
  held = redis.call('HGET', KEYS[2], id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[1], id)
  if not held then
    local late = redis.call('ZREM', KEYS[3], id) == 1
    if mode == 'undo' or mode == 'again' and not late then return 0 end
    lost = not late
  end
end
local reserved = held and parts(held) or {}
for i = 1, #KEYS - 3 do
  local _, kind, amount, p, at = terms(3, i, 1)
  local actual, was = tonumber(ARGV[at + 1]), reserved[i]
  if was and actual <= was.amount or kind == 'n' then
    if kind == 'n' then actual = 0 end
    if was then release(KEYS[i + 3], was.kind, was.amount, was.amount - actual, was.window) end
  else
    local l = read(KEYS[i + 3], kind, amount, p)
    local change = actual
    if was then
      change = actual - was.amount
      l.r = math.max(0, l.r - was.amount)
    end
    local window = was and was.window or l.w
    if kind == 's' and l.w - window > SLOTS or kind == 'c' and l.w ~= window then
      change = 0
    elseif kind == 's' then
      redis.call('HINCRBYFLOAT', l.key, slot(l, window), change)
    end
    l.u = math.min(l.u + change, 9007199254740992)
    write(l)
  end
end
return lost and 2 or 1
